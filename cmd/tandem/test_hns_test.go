// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/contract"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// A report is written and printed, says what differs by its exit code, and is compared
// on any system.
func TestHNSReport(t *testing.T) {
	emu := hnsemu.New(hnsemu.WS2022)
	says := func(args ...string) (string, error) {
		c := newTestHNS(func() (contract.HNS, contract.Service, error) { return emu, nil, nil })
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetErr(new(bytes.Buffer))
		c.SetArgs(args)
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	file := filepath.Join(t.TempDir(), "hns.json")
	out, err := says("--report", file)
	if err != nil || !strings.Contains(out, "HNS 13.2: ") || !strings.Contains(out, " 0 different") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = says("--compare", file, "-o", "wide"); err != nil || !strings.Contains(out, "one-frontend/same") || !strings.Contains(out, "HcnCreateLoadBalancer") {
		t.Errorf("compare: %v\n%s", err, out)
	}

	emu.Behave(hnsemu.Behaviour{Exists: 0xb7})
	for _, args := range [][]string{{"--report", file}, {"--compare", file}} {
		out, err = says(args...)
		if !errors.As(err, new(differsError)) || !strings.Contains(out, "one-frontend/same") || !strings.Contains(out, "0xb7") {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	emu.Hook(func(*hnsemu.Call) hns.Code { return 5 })
	if _, err = says("--report", file); err == nil || !strings.Contains(err.Error(), "administrator") {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = says("--compare", file); err == nil || !strings.Contains(err.Error(), file) {
		t.Error(err)
	}
	if _, err = says("--overlay"); !errors.As(err, new(usageError)) {
		t.Error(err)
	}
}
