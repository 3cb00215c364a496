package main

import (
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Operation is one operation of a history, as histories/models.py describes it.
type Operation struct {
	Model  string `json:"model"`
	Key    string `json:"key"`
	Action string `json:"action"`
	Call   int64  `json:"call"`
	Back   int64  `json:"back"`
	Owner  string `json:"owner"`
	Token  int64  `json:"token"`
	Value  int64  `json:"value"`
	Mode   string `json:"mode"`
	Maybe  bool   `json:"maybe"`
}

const permits = 2

// A lock with leases: who holds it, and the highest token.
type lockState struct {
	holder string
	token  int64
}

func stepLock(state lockState, op Operation) (bool, lockState) {
	if op.Action == "acquire" {
		if state.holder != "" || (op.Token != 0 && op.Token <= state.token) {
			return false, state
		}
		return true, lockState{op.Owner, max(op.Token, state.token)}
	}
	if state.holder != op.Owner {
		return false, state
	}
	if op.Action == "end" {
		state.holder = ""
	}
	return true, state
}

// Sets of owners are sorted texts, which == compares.
func members(set string) []string { return strings.Fields(set) }

func with(set, owner string) string {
	all := append(members(set), owner)
	sort.Strings(all)
	return strings.Join(all, " ")
}

func without(set, owner string) (bool, string) {
	left := []string{}
	for _, member := range members(set) {
		if member != owner {
			left = append(left, member)
		}
	}
	return len(left) < len(members(set)), strings.Join(left, " ")
}

// A semaphore: those who hold a permit.
func stepSemaphore(holders string, op Operation) (bool, string) {
	if op.Action == "acquire" {
		return len(members(holders)) < permits, with(holders, op.Owner)
	}
	found, left := without(holders, op.Owner)
	if op.Action == "end" {
		return found, left
	}
	return found, holders
}

// A read-write lock: its writer, and its readers.
type readWriteState struct{ writer, readers string }

func stepReadWrite(state readWriteState, op Operation) (bool, readWriteState) {
	if op.Mode == "write" {
		switch {
		case op.Action == "acquire":
			return state.writer == "" && state.readers == "", readWriteState{op.Owner, ""}
		case op.Action == "end":
			return state.writer == op.Owner, readWriteState{"", state.readers}
		}
		return state.writer == op.Owner, state
	}
	if op.Action == "acquire" {
		return state.writer == "", readWriteState{state.writer, with(state.readers, op.Owner)}
	}
	found, left := without(state.readers, op.Owner)
	if op.Action == "end" {
		return found, readWriteState{state.writer, left}
	}
	return found, state
}

// The guarded register: a section writes one more than it has read, and has read the last write.
func stepRegister(value int64, op Operation) (bool, int64) {
	if op.Value == value {
		return true, value + 1
	}
	return op.Maybe, value
}

// The register behind a fence: its value, the highest token, and that token's owner.
type fencedState struct {
	value, token int64
	owner        string
}

func stepFenced(state fencedState, op Operation) (bool, fencedState) {
	if op.Action == "forbid" {
		if op.Token >= state.token {
			return true, fencedState{state.value, op.Token, ""}
		}
		return true, state
	}
	newer := op.Token > state.token || (op.Token == state.token && op.Owner == state.owner)
	if newer && op.Value == state.value {
		return true, fencedState{state.value + 1, op.Token, op.Owner}
	}
	return op.Maybe, state
}

func modelOf[S any](first S, step func(S, Operation) (bool, S)) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return first },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			possible, next := step(state.(S), input.(Operation))
			return possible, next
		},
	}
}

var models = map[string]porcupine.Model{
	"lock":       modelOf(lockState{}, stepLock),
	"semaphore":  modelOf("", stepSemaphore),
	"read_write": modelOf(readWriteState{}, stepReadWrite),
	"register":   modelOf(int64(0), stepRegister),
	"fenced":     modelOf(fencedState{}, stepFenced),
}
