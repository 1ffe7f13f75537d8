// SPDX-License-Identifier: Apache-2.0

package hnsemu

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/windows/contract"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// The emulator's error codes are those that package contract expects of a version of HNS,
// or those of a real HNS in a report that is kept in reports.

//go:embed reports
var reports embed.FS

// Kept returns the reports of real machines, by file.
func Kept() (map[string]contract.Report, error) {
	files, err := fs.Glob(reports, "reports/*.json")
	if err != nil {
		return nil, err
	}
	all := map[string]contract.Report{}
	for _, file := range files {
		text, err := reports.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if all[file], err = contract.Read(bytes.NewReader(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	return all, nil
}

// expectations returns the answers of a version without a report.
func expectations(v hns.Version) map[string]hns.Code {
	answers := map[string]hns.Code{}
	for _, e := range contract.All() {
		if code, ok := codeOf(e.Expected(contract.About{HNS: v})); ok {
			answers[e.ID] = code
		}
	}
	return answers
}

// Learn makes the emulator answer as the HNS of a report did. Of several networks in the report
// the last counts: L2Bridge and Overlay, which nodes have, come after NAT.
func (e *Emulator) Learn(r contract.Report) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, x := range r.Results {
		if x.Verdict == contract.NotRun {
			continue
		}
		_, known := e.answers[x.ID]
		if code, ok := codeOf(x.Found); ok && known {
			e.answers[x.ID] = code
		}
		if x.ID == "drops-external/node-port" && x.Found == strconv.Itoa(hns.FlagLocalRoutedVIP) {
			e.behaviour.Echo = DropExternal
		}
	}
}

// codeOf parses an answer that consists of a code.
func codeOf(answer string) (hns.Code, bool) {
	if answer == "ok" {
		return 0, true
	}
	digits, hex := strings.CutPrefix(answer, "0x")
	n, err := strconv.ParseUint(digits, 16, 32)
	return hns.Code(n), hex && err == nil
}

// answer returns the code that an experiment expects, 0 for success.
func (e *Emulator) answer(experiment string) hns.Code {
	code, ok := e.answers[experiment]
	if !ok {
		panic("hnsemu: no experiment answers with a code: " + experiment)
	}
	return code
}

// refusal returns the code that an experiment expects if its case applies, else 0.
func (e *Emulator) refusal(is bool, experiment string) hns.Code {
	if !is {
		return 0
	}
	return e.answer(experiment)
}
