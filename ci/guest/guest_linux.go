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
	"strconv"
	"strings"
	"time"
)

// Between these lines all output is the program's.
const (
	begin  = "--the-program-begins--"
	finish = "--the-program-ends--"
)

//go:embed init.sh
var initScript []byte

// guest is a kernel to run a program on.
type guest struct {
	Kernel string
	Memory int // MiB
	Out    io.Writer
}

// run boots the kernel, runs the program and returns its exit code. The error
// says why there is none.
func (g guest) run(ctx context.Context, program []string) (code int, err error) {
	kernel, err := exec.LookPath(g.Kernel)
	if err != nil {
		return 0, fmt.Errorf("%w (Debian: apt-get install user-mode-linux kmod)", err)
	}
	dir, err := os.MkdirTemp("", "uml-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if err := prepare(dir, program); err != nil {
		return 0, err
	}
	out := &console{to: g.Out}
	cmd := exec.CommandContext(ctx, kernel, g.parameters(dir)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = 5 * time.Second
	own(cmd)
	failed := cmd.Run()
	end(cmd)
	text, err := os.ReadFile(filepath.Join(dir, "exit"))
	switch {
	case err == nil:
		return strconv.Atoi(strings.TrimSpace(string(text)))
	case ctx.Err() != nil:
		return 0, fmt.Errorf("stopped: %w", ctx.Err())
	}
	return 0, fmt.Errorf("the guest ended without a result (%v); its kernel said:\n%s", failed, out.boot.String())
}

// prepare writes what the guest's first process needs.
func prepare(dir string, program []string) error {
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	var b strings.Builder
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
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "init.sh"), initScript, 0o755),
		os.WriteFile(filepath.Join(dir, "command"), []byte(b.String()), 0o644),
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

// parameters are the kernel's. Variables that it does not know go to init's
// environment.
func (g guest) parameters(dir string) []string {
	return []string{
		"mem=" + strconv.Itoa(g.Memory) + "M", "quiet", "loglevel=1",
		"rootfstype=hostfs", "root=/dev/root", "rootflags=/", "ro",
		"con=null", "con0=null,fd:1", "uml_dir=" + dir + "/", "umid=guest",
		"init=" + filepath.Join(dir, "init.sh"), "UML_DIR=" + dir, "UML_BEGIN=" + begin, "UML_END=" + finish,
	}
}

// console passes on the lines between the one that says begin and the one that
// says end, and keeps what came before.
type console struct {
	to    io.Writer
	boot  bytes.Buffer
	line  bytes.Buffer // the beginning of a line
	state int          // 0 before, 1 between, 2 after
}

// Write implements io.Writer.
func (c *console) Write(b []byte) (n int, err error) {
	n = len(b)
	for len(b) > 0 && err == nil {
		part, rest, whole := bytes.Cut(b, []byte{'\n'})
		c.line.Write(part)
		if b = rest; whole {
			err = c.end()
		}
	}
	return n, err
}

// end deals with a line that is complete. Terminals end lines with a carriage
// return, too.
func (c *console) end() (err error) {
	line := strings.TrimSuffix(c.line.String(), "\r")
	c.line.Reset()
	switch {
	case c.state == 0 && line == begin:
		c.state = 1
	case c.state == 0:
		c.boot.WriteString(line + "\n")
	case c.state == 1 && strings.HasSuffix(line, finish):
		c.state = 2
		_, err = io.WriteString(c.to, strings.TrimSuffix(line, finish))
	case c.state == 1:
		_, err = io.WriteString(c.to, line+"\n")
	}
	return err
}
