// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestAudit counts a watch once, and only Events of type Warning that are new.
func TestAudit(t *testing.T) {
	const log = `{"auditID":"a","stage":"ResponseStarted","verb":"watch"}
{"auditID":"a","stage":"ResponseComplete","verb":"watch"}
{"auditID":"b","verb":"create","requestObject":{"kind":"Event","type":"Warning","reason":"PortClash","note":"taken","regarding":{"kind":"Service","namespace":"shop","name":"web"}}}
{"auditID":"c","verb":"patch","requestObject":{"kind":"Event","type":"Warning"}}
{"auditID":"d","verb":"create","requestObject":{"kind":"Event","type":"Normal"}}
`
	if requests, warnings, err := audit(strings.NewReader(log)); requests != 4 || !slices.Equal(warnings, []string{"PortClash: Service shop/web: taken"}) || err != nil {
		t.Errorf("%d requests, warnings %q, %v", requests, warnings, err)
	}
}

// TestMeter adds up a process that ends and one that is there before, which has another name.
func TestMeter(t *testing.T) {
	group := t.TempDir()
	procs := filepath.Join(group, "cgroup.procs")
	busy := exec.Command("sh", "-c", "while :; do :; done")
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(procs, []byte(strconv.Itoa(busy.Process.Pid)+"\n"+strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := &meter{proxy: "sh", group: group, said: map[string]int{}, used: map[string]time.Duration{"1 1": time.Hour}} // of one that ended before
	used := m.during(func() {
		time.Sleep(meterPeriod + time.Second)
		_ = busy.Process.Kill()
		_ = busy.Wait()
	})
	if used <= 0 || used > meterPeriod+time.Second || m.rss != 0 {
		t.Errorf("%v, %d bytes", used, m.rss)
	}
	if _, ok := parseStat("1 (a) b"); ok {
		t.Error("half a line passes")
	}
}

// TestLoggedWarnings counts what is new in a log, half a line not before it is whole.
func TestLoggedWarnings(t *testing.T) {
	m := &meter{read: map[string]int64{}, said: map[string]int{}}
	path := filepath.Join(t.TempDir(), "0.log")
	text := ""
	add := func(more string) {
		t.Helper()
		text += more
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m.readLog(path)
	}
	const at = "2026-11-29T16:36:24.040431769Z stderr F "
	add(at + `I1129 16:36:24.034508       1 modes.go:156] "mode chosen" mode="iptables"` + "\n" + at + `W1129 16:36:25.034508       1 sync.go:84] "sync is late" took="3s"` + "\n")
	add(at + `W1129 16:36:26.034508       1 sync`)
	if m.warnings() != 1 {
		t.Errorf("%v", m.said)
	}
	add(`.go:84] "sync is late" took="4s"` + "\n" + at + `E1129 16:36:27.000000       1 reflector.go:1] failed to list 12 objects` + "\n")
	if m.said[`"sync is late"`] != 2 || m.said["failed to list "] != 1 || m.warnings() != 3 {
		t.Errorf("%v", m.said)
	}
}

// TestProxies: the tests of the cluster that runs are one run, of its proxy, unless another is named.
func TestProxies(t *testing.T) {
	c := &cluster{layout: layout{State: t.TempDir()}}
	usual := everyProxy()
	if _, err := (suite{Here: true}).proxies(c, usual); err == nil {
		t.Error("tests without a cluster")
	}
	if err := os.WriteFile(c.installed(), []byte(proxy{tandem, "userspace"}.run()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		suite suite
		want  []proxy
	}{
		{suite{}, usual},
		{suite{Here: true}, []proxy{{tandem, "userspace"}}},
		{suite{Here: true, Runs: "kube-proxy/iptables"}, []proxy{{kubeProxy, "iptables"}}},
	} {
		if got, err := s.suite.proxies(c, usual); !slices.Equal(got, s.want) || err != nil {
			t.Errorf("%+v: %v, %v", s.suite, got, err)
		}
	}
}
