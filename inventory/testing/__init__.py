"""What tests of a project with stock use."""
