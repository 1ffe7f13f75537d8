// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// uml is user-mode Linux; the value is its program.
type uml string

// String describes it for messages.
func (u uml) String() string { return "user-mode Linux" }

var _ engine = uml("")

func (u uml) command(ctx context.Context, dir string, g *guest) (*exec.Cmd, error) {
	args := u.parameters(g, dir, "init="+filepath.Join(dir, "guest", "init.sh"))
	// Unknown kernel parameters go to init's environment.
	cmd := exec.CommandContext(ctx, string(u), append(args, "loglevel=1", "GUEST_DIR="+filepath.Join(dir, "guest"))...)
	alone(cmd)
	return cmd, nil
}

// alone gives a command a PID namespace of its own, whose processes all end with its first
// one: the helpers of the kernel would outlive it, if it is killed.
func alone(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 { // only in a user namespace of one's own
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
	}
}

// parameters are the kernel's: its root is the host's. It empties the folder umid of
// uml_dir, if there is one.
func (u uml) parameters(g *guest, dir string, more ...string) []string {
	return append([]string{
		"mem=" + strconv.Itoa(g.Memory) + "M", "quiet",
		"rootfstype=hostfs", "root=/dev/root", "rootflags=/", "ro",
		"con=null", "con0=null,fd:1", "uml_dir=" + dir + "/", "umid=uml",
	}, append(more, strings.Fields(g.Append)...)...)
}

// findUML finds user-mode Linux where it is installed and this CPU can run it:
// the kernel copies the CPU's registers through a buffer of a fixed size, so with
// more of them (AMX) its first process is killed before it runs. A first process
// that ends makes the kernel panic, too, with the exit code 0.
func findUML(ctx context.Context, g *guest) (engine, error) {
	if g.Kernel != "" && !strings.HasPrefix("6.1", g.Kernel) {
		return nil, fmt.Errorf("has no kernel %s", g.Kernel)
	}
	program, err := exec.LookPath("linux.uml")
	if err != nil {
		return nil, errors.New("not installed (Debian: apt-get install user-mode-linux)")
	}
	if err := findModprobe(guestPath); err != nil {
		return nil, err
	}
	for range probes {
		said := ""
		if said, err = uml(program).probe(ctx); strings.Contains(said, "Attempted to kill init! exitcode=0x00000000") {
			return uml(program), nil
		} else if said != "" {
			return nil, fmt.Errorf("does not run on this CPU: %s", said)
		}
	}
	return nil, fmt.Errorf("does not run here: %w", err)
}

// A probe takes a second of processor time. On a busy machine that is many seconds, and now and
// then the kernel hangs: so there are several.
const (
	probes     = 4
	probeLimit = 30 * time.Second
)

// probe boots a kernel whose first process ends, and returns the line by which it panics; ""
// with the reason for none. The kernel may go on after that.
func (u uml) probe(ctx context.Context) (panics string, err error) {
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, string(u), u.parameters(&guest{Memory: 64}, dir, "init=/bin/true")...)
	said := &untilSaid{what: regexp.MustCompile(`(ptrace set fp|Kernel panic).*\n`), stop: cancel}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = said, said, 5*time.Second
	alone(cmd)
	own(cmd)
	err = cmd.Run()
	end(cmd)
	return strings.TrimSpace(string(said.what.Find(said.text))), err
}

// untilSaid is the output of a command, which is stopped when it has said something: then or when it ends, text has
// the line. It keeps no more than the end of what was said.
type untilSaid struct {
	text []byte
	what *regexp.Regexp
	stop func()
	said bool
}

func (u *untilSaid) Write(p []byte) (int, error) {
	if u.said {
		return len(p), nil
	}
	u.text = append(tail(u.text), p...)
	if u.said = u.what.Match(u.text); u.said {
		u.stop()
	}
	return len(p), nil
}
