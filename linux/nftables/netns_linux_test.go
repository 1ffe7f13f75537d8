// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// hostNamespace is where the test binary was started. Nothing here may ever
// write to it.
var hostNamespace = currentNamespace()

func currentNamespace() string {
	link, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return "unknown"
	}
	return link
}

// freshNamespace puts the test into a network namespace of its own. The thread
// is never given back, so the namespace ends with the test's goroutine.
//
// Subtests run in goroutines, and so threads, of their own: they are back in the
// host's namespace. Tests that use this have no subtests, or each has its own
// namespace.
func freshNamespace(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("cannot make a network namespace: %v", err)
	}
	mustBeApart(t)
}

// mustBeApart ends the test if it is in the host's namespace. Whatever opens a
// socket or starts a command asks first.
func mustBeApart(t testing.TB) {
	t.Helper()
	if now := currentNamespace(); now == "unknown" || now == hostNamespace {
		t.Fatalf("this goroutine is in the host's network namespace (%s): call freshNamespace in it", now)
	}
}

// runNFT runs the nft command in the test's namespace. Children inherit the
// namespace of the thread that starts them.
func runNFT(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	mustBeApart(t)
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("the nft command is not installed")
	}
	cmd := exec.Command(path, args...)
	cmd.Stdin = bytes.NewReader([]byte(stdin))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func openDriver(t testing.TB) *Driver {
	t.Helper()
	mustBeApart(t)
	d, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// Remove removes our tables by a driver of its own.
func Remove(ctx context.Context) error {
	d, err := Open(Options{})
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Remove(ctx)
}
