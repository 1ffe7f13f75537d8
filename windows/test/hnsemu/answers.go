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

// What the emulator refuses, and with which code, is what package contract expects of
// a version of HNS, or what a report of a real one says that is kept in reports.

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

// Learn makes the emulator answer as a report says. Where the report has several networks,
// the last counts: it is more like those of nodes than NAT.
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

// codeOf reads an answer that is one code.
func codeOf(answer string) (hns.Code, bool) {
	if answer == "ok" {
		return 0, true
	}
	digits, hex := strings.CutPrefix(answer, "0x")
	n, err := strconv.ParseUint(digits, 16, 32)
	return hns.Code(n), hex && err == nil
}

// answer is the answer to an experiment, 0 if HNS accepts what is asked of it there.
func (e *Emulator) answer(experiment string) hns.Code {
	code, ok := e.answers[experiment]
	if !ok {
		panic("hnsemu: no experiment answers with a code: " + experiment)
	}
	return code
}

// refusal is the answer to an experiment if this is such a case.
func (e *Emulator) refusal(is bool, experiment string) hns.Code {
	if !is {
		return 0
	}
	return e.answer(experiment)
}
