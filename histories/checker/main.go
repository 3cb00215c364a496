// Checker reads operations, one JSON object per line, and judges each lock's history with Porcupine.
//
// It prints one JSON object per model and key: {"model", "key", "operations", "result"}, where result is Ok,
// Illegal, or Unknown if a minute was not enough.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verdict is what is printed of one history.
type Verdict struct {
	Model      string                `json:"model"`
	Key        string                `json:"key"`
	Operations int                   `json:"operations"`
	Result     porcupine.CheckResult `json:"result"`
}

func judge(input io.Reader) ([]Verdict, error) {
	histories := map[[2]string][]porcupine.Operation{}
	lines := bufio.NewScanner(input)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var op Operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, err
		}
		if _, known := models[op.Model]; !known {
			return nil, fmt.Errorf("no model %q", op.Model)
		}
		name := [2]string{op.Model, op.Key}
		histories[name] = append(histories[name], porcupine.Operation{Input: op, Call: op.Call, Return: op.Back})
	}
	verdicts := []Verdict{}
	for name, history := range histories {
		result := porcupine.CheckOperationsTimeout(models[name[0]], history, time.Minute)
		verdicts = append(verdicts, Verdict{name[0], name[1], len(history), result})
	}
	sort.Slice(verdicts, func(i, j int) bool {
		return verdicts[i].Model+verdicts[i].Key < verdicts[j].Model+verdicts[j].Key
	})
	return verdicts, lines.Err()
}

func main() {
	verdicts, err := judge(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, "checker:", err)
		os.Exit(1)
	}
	output := json.NewEncoder(os.Stdout)
	for _, verdict := range verdicts {
		output.Encode(verdict)
	}
}
