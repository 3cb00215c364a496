"""What a checkout costs through HTTP, by strategy, against views that do less or lock by hand."""
