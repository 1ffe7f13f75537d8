// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// enterNetwork puts the test's thread, which is never given back, into a network
// namespace of its own.
func enterNetwork(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace can be made here: %v", err)
	}
}

// variant returns the tools of a variant, or skips the test.
func variant(t *testing.T, found []Tools, v Variant) Tools {
	t.Helper()
	at := slices.IndexFunc(found, func(tools Tools) bool { return tools.Variant == v })
	if at < 0 {
		t.Skipf("the %s variant is not installed", v)
	}
	return found[at]
}

// iptables-restore takes a read that is interrupted for the end of its script,
// and interrupts itself: see inMemory. A pipe would fail here, after a second.
func TestASlowRestoreIsNotCutShort(t *testing.T) {
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
	found, err := FindTools(t.Context())
	if err != nil {
		t.Skip(err)
	}
	for _, tools := range found {
		t.Run(string(tools.Variant), func(t *testing.T) {
			enterNetwork(t)
			if _, err := tools.Save(t.Context(), model.IPv4, NAT); err != nil {
				t.Skip(err)
			}
			script := []byte("*nat\n:KUBE-SLOW - [0:0]\n" + strings.Repeat("# a comment\n", 100_000) + "COMMIT\n")
			if _, err := run(t.Context(), script, "/bin/sh", "-c", "test -f /dev/stdin"); err != nil {
				t.Errorf("a script is not read from a file: %v", err)
			}
			if err := tools.Restore(t.Context(), model.IPv4, script); err != nil {
				t.Fatal(err)
			}
			if text, err := tools.Save(t.Context(), model.IPv4, NAT); err != nil || !strings.Contains(text, ":KUBE-SLOW") {
				t.Errorf("not all of the script was done (%v)", err)
			}
		})
	}
}

// A table that the nft variant cannot list is an error, and not one without our
// rules: iptables-nft-save says so in a comment alone, and succeeds.
func TestTableThatCannotBeListed(t *testing.T) {
	enterNetwork(t)
	found, err := FindTools(t.Context())
	if err != nil {
		t.Skip(err)
	}
	tools := variant(t, found, NFT)
	nft := func(script string) {
		t.Helper()
		if _, err := run(t.Context(), []byte(script), "/bin/sh", "-c", "nft -f -"); err != nil {
			t.Skip(err)
		}
	}
	listed := func(table Table, want bool) {
		t.Helper()
		_, err1 := tools.Save(t.Context(), model.IPv4, table)
		_, err2 := tools.SaveAll(t.Context(), model.IPv4)
		_, err3 := Choose(t.Context(), found)
		for i, err := range []error{err1, err2, err3} {
			named := errors.Is(err, ErrIncompatible) && strings.Contains(err.Error(), "table "+table.String())
			if want && err != nil || !want && !named {
				t.Errorf("table %s, by %s: %v", table, [...]string{"Save", "SaveAll", "Choose"}[i], err)
			}
		}
	}
	const native = "table ip %[1]s { chain %[2]s { type %[3]s hook %[4]s priority %[5]d; numgen inc mod 2 0 counter; }; };"
	for _, tt := range []struct {
		table    Table
		chain    string
		kind     string
		hook     string
		priority int
	}{{NAT, "POSTROUTING", "nat", "postrouting", 100}, {Filter, "INPUT", "filter", "input", 0}, {Mangle, "PREROUTING", "filter", "prerouting", -150}} {
		nft(fmt.Sprintf(native, tt.table, tt.chain, tt.kind, tt.hook, tt.priority))
		listed(tt.table, false)
		nft("delete table ip " + tt.table.String())
		listed(tt.table, true)
	}
	// Not listed but of no concern to us, and listed in spite of a chain that is not.
	nft(fmt.Sprintf(native, "raw", "PREROUTING", "filter", "prerouting", -300) + "table ip nat { chain mine { type nat hook postrouting priority 100; masquerade; }; };")
	listed(NAT, true)
}

// The holder of the lock is waited for; a lock that cannot be had at all is not held
// by anybody.
func TestLockOfTheLegacyVariant(t *testing.T) {
	enterNetwork(t)
	held := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(held)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found, err := FindTools(t.Context())
	if err != nil {
		t.Skip(err)
	}
	tools := variant(t, found, Legacy)
	for path, busy := range map[string]bool{held: true, "/nonexistent/lock": false} {
		t.Setenv("XTABLES_LOCKFILE", path)
		err := tools.Restore(t.Context(), model.IPv4, []byte("*nat\nCOMMIT\n"))
		if err == nil || errors.As(err, new(ledger.BusyError)) != busy {
			t.Errorf("%s: busy should be %t: %v", path, busy, err)
		}
	}
}

// A list of tables that cannot be read is an error, and not an empty one: the rules would
// be left, or taken for absent. Without the module there is no list.
func TestTableNames(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, "names")
	if err := os.WriteFile(list, []byte("nat\nfilter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{list: 2, filepath.Join(dir, "none"): 0} {
		if names, err := readTableNames(path); len(names) != want || err != nil {
			t.Errorf("%s: %q, %v", path, names, err)
		}
	}
	if names, err := readTableNames(dir); err == nil {
		t.Errorf("a list that cannot be read: %q", names)
	}
}

// Counting the rules of legacy tables makes none of these tables.
func TestCountingLegacyRulesMakesNoTable(t *testing.T) {
	enterNetwork(t)
	found, err := FindTools(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	legacy := variant(t, found, Legacy)
	for _, c := range []struct {
		rule   string
		rules  int
		tables string
	}{
		{"", 0, "[]"},
		{"*filter\n-A INPUT -s 192.0.2.7 -j ACCEPT\nCOMMIT\n", 1, "[filter]"},
		{"*nat\n-A OUTPUT -s 192.0.2.7 -j ACCEPT\nCOMMIT\n", 2, "[filter nat]"},
	} {
		if c.rule != "" {
			if err := legacy.RestoreWait(t.Context(), model.IPv4, []byte(c.rule)); err != nil {
				t.Skipf("no legacy tables here: %v", err)
			}
		}
		if n := legacyRules(model.IPv4); n != c.rules {
			t.Errorf("%d rules, want %d", n, c.rules)
		}
		names, err := legacyTables(model.IPv4)
		if slices.Sort(names); err != nil || fmt.Sprint(names) != c.tables {
			t.Errorf("tables %v, want %s (%v)", names, c.tables, err)
		}
	}
}
