// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed init.sh
var initScript []byte

// guest is a kernel to run a program on.
type guest struct {
	Engine  string   // qemu, uml, auto; empty for $TANDEM_GUEST, or auto
	Kernel  string   // the beginning of its version; empty for any
	Memory  int      // MiB
	Append  string   // more parameters of the kernel
	With    []string // patterns of more files of the host's, for QEMU
	Without []string // modules
	Out     io.Writer
}

// engine is a way to boot a kernel.
type engine interface {
	fmt.Stringer
	// command boots the kernel with init.sh as its first process. It may write to
	// dir, where the folder guest holds init.sh and the command. Its output is the
	// console's; other messages of the kernel go to dir/log, if anywhere.
	command(ctx context.Context, dir string, g *guest) (*exec.Cmd, error)
}

// run boots the kernel, runs the program and returns its exit code, or an error if
// there is none.
func (g *guest) run(ctx context.Context, e engine, program []string) (code int, err error) {
	dir, err := os.MkdirTemp("", "guest-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := writeFiles(dir, program); err != nil {
		return 0, err
	}
	cmd, err := e.command(ctx, dir, g)
	if err != nil {
		return 0, err
	}
	out := &console{to: g.Out}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second
	own(cmd)
	failed := cmd.Run()
	end(cmd)
	switch {
	case out.state == ended:
		return out.code, nil
	case ctx.Err() != nil:
		failed = fmt.Errorf("stopped: %w", ctx.Err())
	}
	log, _ := os.ReadFile(filepath.Join(dir, "log"))
	return 0, fmt.Errorf("%s: no result (%v); console:\n%s%s", e, failed, tail(log), out.boot.Bytes())
}

// tail returns the end of a kernel's log.
func tail(b []byte) []byte { return b[max(0, len(b)-8<<10):] }

// writeFiles writes the files for the guest's first process.
func writeFiles(dir string, program []string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	if program[0], err = exec.LookPath(program[0]); err != nil {
		return err
	}
	if program[0], err = filepath.Abs(program[0]); err != nil {
		return err
	}
	var b bytes.Buffer
	for _, v := range os.Environ() {
		name, value, _ := strings.Cut(v, "=")
		if passed(name) {
			fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
		}
	}
	fmt.Fprintf(&b, "cd %s && exec", quote(here))
	for _, word := range program {
		b.WriteString(" " + quote(word))
	}
	b.WriteString("\n")
	dir = filepath.Join(dir, "guest")
	return errors.Join(
		os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "init.sh"), initScript, 0o755),
		os.WriteFile(filepath.Join(dir, "command"), b.Bytes(), 0o644),
	)
}

// passed reports whether the program sees a variable of our environment.
func passed(name string) bool {
	for _, prefix := range []string{"TANDEM_", "KUBE_", "GODEBUG", "GOTRACEBACK", "HOME"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// quote makes a word for the shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// own makes the kernel's many processes a group that ends
// with this one. Processes of the guest are processes here, in that group.
func own(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

// end ends what the kernel has left of its group.
func end(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // mostly there is nothing left
	}
}
