// SPDX-License-Identifier: Apache-2.0

package platform_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/netns"
	"github.com/tandem-proxy/tandem/platform"
)

// newNet makes a node and a machine outside, or skips the test.
func newNet(t *testing.T) *netns.Net {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	net, err := netns.New(t.Context(), netns.Plan{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Outside: []netip.Addr{netip.MustParseAddr("192.0.2.100")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := net.Close(); err != nil {
			t.Error(err)
		}
	})
	return net
}

// Each network namespace has its own lock, also within one process.
func TestLockBelongsToTheNamespace(t *testing.T) {
	net := newNet(t)
	lock := func(at netns.Place) (l io.Closer, err error) {
		err = net.Do(at, func() error { l, err = platform.Lock(); return err })
		return l, err
	}
	held, err := lock(netns.Node)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(netns.Node); err == nil || !strings.Contains(err.Error(), "stop that one first") {
		t.Errorf("a second lock: %v", err)
	}
	elsewhere, err := lock(netns.Outside)
	if err != nil {
		t.Fatalf("another namespace: %v", err)
	}
	defer elsewhere.Close()

	c := config.Default()
	c.HTTPAddress, c.HealthAddress, c.Manifests = "", "", t.TempDir()
	open := func() (p *platform.Proxy, err error) {
		err = net.Do(netns.Node, func() error {
			p, err = platform.Open(t.Context(), &c, "test", slog.New(slog.DiscardHandler))
			return err
		})
		return p, err
	}
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "another tandem") {
		t.Errorf("a proxy beside another: %v", err)
	}
	if err := held.Close(); err != nil {
		t.Fatal(err)
	}
	if err := net.Do(netns.Node, func() error { return platform.Modes()[0].Probe(t.Context()) }); err != nil {
		t.Skipf("no proxy can be opened here: %v", err)
	}
	for range 2 { // a proxy that is closed leaves the lock to the next
		p, err := open()
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What anybody can do does not keep tandem from its lock: to hold an abstract
// socket of any name, or files that a killed one has left.
func TestLockCannotBeTakenByOthers(t *testing.T) {
	n := newNet(t)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if err := n.Do(netns.Node, func() error {
		squatter, err := net.Listen("unix", "@tandem-proxy")
		if err != nil {
			return err
		}
		defer squatter.Close()
		for range 2 {
			held, err := platform.Lock()
			if err != nil {
				t.Errorf("beside a squatter: %v", err)
				return nil
			}
			l, err := held.Listen()
			if err != nil {
				return err
			}
			info, err := os.Stat(l.Addr().String())
			if err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("control socket: %v, %v", info, err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false) // as when killed
			if err := errors.Join(l.Close(), held.Close()); err != nil {
				t.Error(err)
			}
			defer os.Remove(l.Addr().String())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A process in the network namespace that has another /run, as one in a pod with
// the host's network, meets the lock, and does not reach the control socket.
func TestLockHoldsForOtherMountNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := newNet(t)
	var held platform.Held
	if err := n.Do(netns.Node, func() error {
		claim, err := host.Lock()
		if errors.Is(err, host.ErrNoLock) {
			t.Skip(err)
		}
		if err := errors.Join(err, claim.Close()); err != nil {
			return err
		}
		held, err = platform.Lock()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	told := make(chan error, 1)
	go func() { // of its own: its thread ends with it, and with its mounts
		told <- n.Do(netns.Node, func() error {
			runtime.LockOSThread()
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				return err
			}
			if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", "/run", "tmpfs", 0, "size=1m")); err != nil {
				return err
			}
			other, err := platform.Lock()
			if err == nil {
				err = other.Close()
			}
			return err
		})
	}()
	if err := <-told; err == nil || !strings.Contains(err.Error(), "another tandem runs in this network namespace") {
		t.Errorf("with another /run: %v", err)
	}
}

// Without the right to program rules no process gets the claim, or keeps the lock
// from a privileged one: user 65534 in the same network namespace.
func TestUnprivilegedLockBlocksNoOther(t *testing.T) {
	if os.Getenv("TANDEM_TEST_LOCK") != "" { // the child: hold the lock until stdin ends
		held, err := platform.Lock()
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("held\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("/tmp", "tandem-lock-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := dir + "/test"
	b, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(program, b, 0o755), os.Chmod(dir, 0o755), os.Mkdir(dir+"/run", 0o700), os.Chown(dir+"/run", 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	n := newNet(t)
	if err := n.Do(netns.Node, func() error {
		cmd := exec.Command(program, "-test.run=^TestUnprivilegedLockBlocksNoOther$")
		cmd.Dir = dir
		cmd.Env = []string{"TANDEM_TEST_LOCK=1", "XDG_RUNTIME_DIR=" + dir + "/run"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		stdin, err1 := cmd.StdinPipe()
		stdout, err2 := cmd.StdoutPipe()
		if err := errors.Join(err1, err2, cmd.Start()); err != nil {
			return err
		}
		word := make([]byte, 5)
		_, err := io.ReadFull(stdout, word)
		if err == nil {
			held, err := platform.Lock()
			if err != nil {
				t.Errorf("beside an unprivileged one: %v", err)
			} else if err := held.Close(); err != nil {
				t.Error(err)
			}
		}
		return errors.Join(err, stdin.Close(), cmd.Wait())
	}); err != nil {
		t.Fatal(err)
	}
}

// What others do to the file of a lock makes no failure of giving the lock up, and
// a file that is not its own any more is kept.
func TestFileOfALockGoes(t *testing.T) {
	n := newNet(t)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if err := n.Do(netns.Node, func() error {
		for _, again := range []bool{false, true} {
			held, err := platform.Lock()
			if err != nil {
				return err
			}
			l, err := held.Listen()
			if err != nil {
				return errors.Join(err, held.Close())
			}
			path := strings.TrimSuffix(l.Addr().String(), ".sock") + ".lock"
			if err := errors.Join(l.Close(), os.Remove(path)); err != nil {
				return err
			}
			if again {
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					return err
				}
				defer os.Remove(path)
			}
			if err := held.Close(); err != nil {
				t.Errorf("without its file, made again: %t: %v", again, err)
			}
			if _, err := os.Lstat(path); again && err != nil {
				t.Errorf("another program's file: %v", err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A process that was killed may leave its lock to a child that has not executed yet, for a
// moment.
func TestLockIsWaitedFor(t *testing.T) {
	n := newNet(t)
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	if err := n.Do(netns.Node, func() error {
		held, err := platform.Lock()
		if err != nil {
			return err
		}
		l, err := held.Listen()
		if err != nil {
			return errors.Join(err, held.Close())
		}
		path := strings.TrimSuffix(l.Addr().String(), ".sock") + ".lock"
		if err := errors.Join(l.Close(), held.Close()); err != nil {
			return err
		}
		left, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		if err := unix.Flock(int(left.Fd()), unix.LOCK_EX); err != nil {
			return errors.Join(err, left.Close())
		}
		time.AfterFunc(100*time.Millisecond, func() { _ = left.Close() })
		if held, err = platform.Lock(); err != nil {
			return err
		}
		return held.Close()
	}); err != nil {
		t.Fatal(err)
	}
}
