// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netlink"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// namesakes are tables with our name that are another program's, also in disguise.
var namesakes = map[string]string{
	"no comment":    "table ip tandem {\n set slots { type ipv4_addr; elements = { 1.1.1.1 }; }\n chain prerouting { type filter hook prerouting priority 0; ip saddr @slots drop; }\n}",
	"their comment": "table ip tandem {\n comment \"two horses\"\n chain reject-chain { counter; }\n}",
	"ours inside":   "table ip tandem {\n comment \"not: " + comment + "\"\n}",
	"dormant":       "table ip tandem { flags dormant; }",
}

// A table of our name that is not ours stays unchanged, whatever we are asked,
// and the error has its name.
func TestNamesake(t *testing.T) {
	for name, script := range namesakes {
		t.Run(name, func(t *testing.T) {
			freshNamespace(t)
			runNFT(t, script, "-f", "-")
			before := runNFT(t, "", "list", "ruleset")
			refused := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, nft.ErrForeign) || !strings.Contains(err.Error(), "table ip tandem") || !strings.Contains(err.Error(), "delete") {
					t.Errorf("%s: %v", what, err)
				}
				if after := runNFT(t, "", "list", "ruleset"); after != before {
					t.Fatalf("%s: the table is now\n%s\nand was\n%s", what, after, before)
				}
			}
			d := openDriver(t)
			have, err := d.Objects(t.Context())
			refused("observe", err)
			if len(have) > 0 {
				t.Errorf("%d objects of it are taken for ours", len(have))
			}
			table := nft.TableKey(model.IPv4)
			for what, ops := range map[string][]nft.Op{
				"create":  creation(compile(t, testHost, testPorts()...)),
				"replace": {{Verb: ledger.Replace, Key: table, New: nft.Value{Body: &nft.Body{Comment: comment}}}},
				"delete":  {{Verb: ledger.Delete, Key: table}},
				"add":     {{Verb: ledger.Create, Key: nft.ChainKey(model.IPv4, "x"), New: chainOf(model.IPv4)}},
			} {
				refused(what, d.Commit(t.Context(), ops)[0])
			}
			refused("remove", Remove(t.Context()))
			refused("probe", Probe(t.Context()))
		})
	}
}

// A table that appears between the look and the transaction is not written to,
// either: the kernel rejects.
func TestNamesakeInBetween(t *testing.T) {
	freshNamespace(t)
	runNFT(t, namesakes["ours inside"], "-f", "-")
	before := runNFT(t, "", "list", "ruleset")
	sock, err := netlink.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	ops := creation(compile(t, testHost))
	if err := sock.Send(t.Context(), table.Encode(ops, sock.Next())); err != nil {
		t.Fatal(err)
	}
	if err := sock.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := runNFT(t, "", "list", "ruleset"); after != before {
		t.Errorf("the table is now\n%s", after)
	}
}

// The table of one family is removed though the other's is not ours.
func TestRemoveBesideNamesake(t *testing.T) {
	freshNamespace(t)
	mustCommit(t, openDriver(t), creation(compile(t, testHost)))
	runNFT(t, "delete table ip tandem\n"+namesakes["no comment"], "-f", "-")
	if err := Remove(t.Context()); !errors.Is(err, nft.ErrForeign) {
		t.Errorf("removal: %v", err)
	}
	if left := runNFT(t, "", "list", "tables"); left != "table ip tandem\n" {
		t.Errorf("left is %q", left)
	}
}

// Probes at once do not disturb each other, nor whatever is installed.
func TestProbesAtOnce(t *testing.T) {
	freshNamespace(t)
	mustCommit(t, openDriver(t), creation(compile(t, testHost, testPorts()...)))
	before := runNFT(t, "", "list", "ruleset")
	space, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			runtime.LockOSThread() // for good: the thread ends with the goroutine
			if err := unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
				t.Error(err)
				return
			}
			if now := currentNamespace(); now == hostNamespace || now == "unknown" {
				t.Error("still in the host's network namespace")
				return
			}
			for range 5 {
				if err := Probe(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if after := runNFT(t, "", "list", "ruleset"); after != before {
		t.Errorf("the probes leave\n%s", after)
	}
}

// A process that is killed while it probes leaves no table (Linux 5.12 and later).
func TestKilledProbe(t *testing.T) {
	if os.Getenv("TANDEM_PROBE_FOREVER") != "" {
		fmt.Println("probing")
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			_ = Probe(context.Background())
		}
		return
	}
	freshNamespace(t)
	for i := range 10 {
		killProbe(t, time.Duration(i)*3*time.Millisecond)
		if left := runNFT(t, "", "list", "tables"); left != "" {
			t.Fatalf("a killed probe leaves\n%s", left)
		}
	}
}

// killProbe kills a process some time after it began to probe.
func killProbe(t *testing.T, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProbe$")
	cmd.Env = append(os.Environ(), "TANDEM_PROBE_FOREVER=1")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Wait() }() // in any case: it was killed
	defer func() { _ = cmd.Process.Kill() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	time.Sleep(after)
}

// Temporary tables of a process that was killed on an older kernel are removed when this mode is opened, or probed,
// or cleaned up, and nothing else is: those of a process that runs, and what is not ours though it is called so.
func TestTemporaryTablesAreSwept(t *testing.T) {
	ports := func() (live, gone uint32) {
		t.Helper()
		port := func() (uint32, *netlink.Socket) {
			s, err := netlink.Open()
			if err != nil {
				t.Fatal(err)
			}
			n, err := s.Port()
			if err != nil {
				t.Fatal(err)
			}
			return n, s
		}
		live, running := port()
		t.Cleanup(func() { running.Close() })
		gone, killed := port()
		killed.Close()
		return live, gone
	}
	n := 0
	script := func(family, prefix string, port uint32, comment string) string {
		n++
		return fmt.Sprintf("table %s %s%08x-%08x { comment \"%s\"; }\n", family, prefix, port, n, comment)
	}
	for name, sweep := range map[string]func() error{
		"probe": func() error { return Probe(t.Context(), model.IPv4) },
		"start": func() error {
			b, err := openBackend(t.Context(), &config.Config{}, slog.New(slog.DiscardHandler))
			if err == nil {
				err = b.Close()
			}
			return err
		},
		"cleanup": func() error { return Mode().Clear(t.Context(), &config.Config{}) },
	} {
		t.Run(name, func(t *testing.T) {
			freshNamespace(t)
			live, gone := ports()
			stay, left := "", ""
			for _, prefix := range []string{"tandem-probe-", "tandem-monitor-", "tandem-trace-"} {
				stay += script("ip", prefix, live, comment) + script("ip6", prefix, gone, "somebody's") + script("inet", prefix, gone, "somebody's") +
					"table ip " + prefix + "mine { comment \"" + comment + "\"; }\n"
				left += script("ip", prefix, gone, comment) + script("ip6", prefix, gone, nft.Owner+" (layout 0)")
			}
			runNFT(t, stay, "-f", "-")
			before := runNFT(t, "", "list", "ruleset")
			runNFT(t, left, "-f", "-")
			if err := sweep(); err != nil {
				t.Fatal(err)
			}
			if after := runNFT(t, "", "list", "ruleset"); after != before {
				t.Errorf("it leaves\n%s\nand not\n%s", after, before)
			}
		})
	}
}

// nft itself takes every awkward name, and lists what the driver wrote of it.
func TestAwkwardNames(t *testing.T) {
	for _, name := range awkward {
		t.Run("", func(t *testing.T) {
			freshNamespace(t)
			want := compile(t, testHost, awkwardPort(name, name, name))
			runNFT(t, table.Script(want), "-c", "-f", "-")
			d := openDriver(t)
			mend(t, d, want)
			runNFT(t, "", "list", "ruleset")
		})
	}
}

// Lists of what other programs have are read while these write.
func TestListsBesideWrites(t *testing.T) {
	freshNamespace(t)
	var script strings.Builder
	script.WriteString("add table ip other\n")
	for i := range 500 { // more than one message of a dump has
		fmt.Fprintf(&script, "add chain ip other in%d { type filter hook input priority 0; }\nadd rule ip other in%d accept\n", i, i)
	}
	runNFT(t, script.String(), "-f", "-")
	d := openDriver(t)
	mustCommit(t, d, creation(compile(t, testHost)))
	writing, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for writing.Err() == nil {
			if err := Probe(context.Background(), model.IPv4); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 300 {
		// 20 chains, and how many there are beyond: the writer's may be among those.
		if texts, err := d.Others(t.Context()); err != nil || len(texts) != 21 || !strings.HasPrefix(texts[20], "and 4") {
			t.Errorf("%d texts: %v", len(texts), err)
			break
		}
	}
	stop()
	writer.Wait()
}
