// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestDownEndsTheCommand ends what a command that was killed has started, and what it has started in turn,
// but not the one that removes a cluster from inside.
func TestDownEndsTheCommand(t *testing.T) {
	state := filepath.Join(t.TempDir(), "tandem-groups-test")
	if err := enterCommand(groupName(state)); err != nil {
		t.Skipf("no control groups can be made here: %v", err)
	}
	defer down(state)
	groups, err := ourGroups(groupName(state))
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if shares, err := os.ReadFile(filepath.Join(g, "cpu.shares")); err == nil && string(shares) != clusterShares+"\n" {
			t.Errorf("%s has %s shares", g, shares)
		}
	}
	for range 2 { // twice in the same place
		if err := enterCommand(groupName(state)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(state, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(state, "late")
	child := exec.Command("sh", "-c", "(sleep 3 && mkdir -p "+state+" && touch "+file+") & wait")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := down(state); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil || child.ProcessState.ExitCode() != -1 {
		t.Errorf("the child ended with %v, not by a signal", err)
	}
	time.Sleep(4 * time.Second)
	if _, err := os.Stat(state); !os.IsNotExist(err) {
		t.Errorf("the state folder is there again: %v", err)
	}
	if found, err := ourGroups(groupName(state)); err != nil || len(found) > 0 {
		t.Errorf("groups remain: %v, %v", found, err)
	}
}
