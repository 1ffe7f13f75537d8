// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/contract"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// TestContract runs `tandem test hns` of the Windows program on the emulator: every
// experiment that needs no restart and no packets comes out as expected, through the DLLs'
// interface as in Go, and nothing is left. It prints the report's counts.
func TestContract(t *testing.T) {
	p := open(t)
	exe := build(t)
	for _, v := range []hns.Version{hnsemu.WS2019, hnsemu.WS2022, hnsemu.WS2025RT, hnsemu.WS2025} {
		emu := hnsemu.New(v)
		emu.Hold(listens)
		file := filepath.Join(t.TempDir(), "hns.json")
		c := p.command(exe, "test", "hns", "--adapter", "Ethernet", "--report", windowsPath(file))
		c.Env = append(c.Env, "HNSEMU_ADDR="+serveHNS(t, emu))
		said, err := finish(c)
		text, err2 := os.ReadFile(file)
		if c.ProcessState.ExitCode() == 3 && other(v) > 0 {
			err = nil
		}
		if err != nil || err2 != nil {
			t.Fatalf("%v, %v\n%s", err, err2, said)
		}
		r, err := contract.Read(bytes.NewReader(text))
		if err != nil || !strings.HasPrefix(r.Windows, "10.0.20348") || r.HNS != v.String() || len(r.Left) > 0 || r.Ended != "" {
			t.Errorf("%v: %+v", err, r)
		}
		if n := r.Count(contract.Expected); n < 100 || r.Count(contract.Different) != other(v) {
			t.Errorf("HNS %s: %d as expected\n%s", v, n, said)
		}
		if networks, err := emu.Client().Networks(); err != nil || len(networks)+len(emu.Endpoints())+len(emu.Balancers())+emu.Handles() > 0 {
			t.Errorf("left: %v, %v, %v, %d handles (%v)", networks, emu.Endpoints(), emu.Balancers(), emu.Handles(), err)
		}
		inGo := hnsemu.New(v)
		inGo.Hold(listens)
		direct, err := contract.Run(t.Context(), inGo, contract.Options{Windows: r.Windows, Adapter: "Ethernet", Listen: contract.Listen})
		if err != nil || answers(t, direct) != answers(t, r) {
			t.Errorf("%v: in Go\n%s\nunder Wine\n%s", err, answers(t, direct), answers(t, r))
		}
		fmt.Printf("contract: HNS %s under Wine: %d as expected, %d different, %d not run\n", v, r.Count(contract.Expected), r.Count(contract.Different), r.Count(contract.NotRun))
	}
}

// listens reports whether a process of this machine has a TCP port on all addresses, such as one
// under Wine.
func listens(port uint16) bool {
	l, err := contract.Listen(int(port))
	return err != nil || l.Close() != nil
}

// other is how many answers of a version differ because Wine's prefix says that it is
// Server 2022: that of its build, on two networks.
func other(v hns.Version) int {
	if v == hnsemu.WS2022 {
		return 0
	}
	return 2
}

// answers are the results of a report without times.
func answers(t *testing.T, r contract.Report) string {
	t.Helper()
	for i := range r.Results {
		r.Results[i].Millis = 0
	}
	b, err := json.MarshalIndent(r.Results, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
