// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// recipe names how the prefix is made; another name makes another prefix.
const recipe = "server2022-1"

// prefix is a Wine prefix that this process alone uses.
type prefix struct {
	dir    string
	wine   string
	server string
	lock   *os.File
	keeper *exec.Cmd
}

// binary finds a program of Wine: Debian keeps it out of PATH.
func binary(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	path := "/usr/lib/wine/" + name
	_, err := os.Stat(path)
	return path, err
}

// openPrefix makes the prefix if there is none yet, and starts its server. The
// error of a machine that lacks something is errLacking.
func openPrefix() (*prefix, error) {
	p := &prefix{}
	var err, err2 error
	p.wine, err = binary("wine64")
	p.server, err2 = binary("wineserver64")
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("%w wine64: %w", errLacking, err)
	}
	if _, err := exec.LookPath(compiler); err != nil {
		return nil, fmt.Errorf("%w gcc-mingw-w64-x86-64: %w", errLacking, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("%w a cache folder: %w", errLacking, err)
	}
	p.dir = filepath.Join(cache, "tandem-wine", recipe)
	return p, p.open()
}

var errLacking = errors.New("this machine lacks")

func (p *prefix) open() error {
	if err := os.MkdirAll(filepath.Dir(p.dir), 0o755); err != nil {
		return err
	}
	var err error
	if p.lock, err = os.OpenFile(p.dir+".lock", os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return err
	}
	if err := syscall.Flock(int(p.lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	if err := p.stop(); err != nil { // of a test that was killed: we hold the lock
		return err
	}
	ready := filepath.Join(p.dir, "ready")
	if _, err := os.Stat(ready); err != nil {
		if err := p.make(); err != nil {
			return err
		}
		if err := os.WriteFile(ready, nil, 0o644); err != nil {
			return err
		}
	}
	if err := p.dlls(); err != nil {
		return err
	}
	return p.keep()
}

// make makes the prefix with the version of Windows Server 2022.
func (p *prefix) make() error {
	if err := os.RemoveAll(p.dir); err != nil {
		return err
	}
	if err := p.run("wineboot", "-i"); err != nil {
		return err
	}
	const key = `HKLM\Software\Microsoft\Windows NT\CurrentVersion`
	for _, v := range [][2]string{{"CurrentVersion", "10.0"}, {"CurrentBuildNumber", "20348"}, {"CurrentBuild", "20348"}} {
		if err := p.run("reg", "add", key, "/v", v[0], "/t", "REG_SZ", "/d", v[1], "/f"); err != nil {
			return err
		}
	}
	return p.stop()
}

// command is a program under Wine. What should end by itself is run by finish.
func (p *prefix) command(args ...string) *exec.Cmd {
	c := exec.Command(p.wine, args...)
	c.Env = append(os.Environ(), "DISPLAY=", "WINEPREFIX="+p.dir, "WINEDEBUG=-all")
	return c
}

func (p *prefix) run(args ...string) error {
	if err := p.command(args...).Run(); err != nil {
		return fmt.Errorf("wine64 %v: %w", args, err)
	}
	return nil
}

// patience is the time after which a program that should end by itself is ended.
const patience = 3 * time.Minute

// finish runs a program of command to its end and returns what it prints, errors
// included unless they go elsewhere. It waits
// for the program alone: a desktop or a service that Wine starts for it inherits its
// output, and stays.
func finish(c *exec.Cmd) ([]byte, error) {
	var out bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &out
	}
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		return nil, err
	}
	end := time.AfterFunc(patience, func() { c.Process.Kill() })
	err := c.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it went well
	}
	if !end.Stop() {
		err = fmt.Errorf("%s has not ended within %s: %w", c.Args[1], patience, err)
	}
	return out.Bytes(), err
}

// compiler makes the test DLLs.
const compiler = "x86_64-w64-mingw32-gcc"

// dlls builds the test DLLs into the prefix.
func (p *prefix) dlls() error {
	const source = "../../windows/test/hnsemu/dll"
	for _, name := range []string{"computenetwork", "vmcompute", "bcryptprimitives"} {
		to := filepath.Join(p.dir, "drive_c/windows/system32", name+".dll")
		c := exec.Command(compiler, "-O2", "-Wall", "-Wno-unused-function", "-shared", "-static-libgcc", "-s",
			"-o", to, filepath.Join(source, name+".c"), "-lws2_32", "-lole32", "-ladvapi32")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s.dll: %w\n%s", name, err, out)
		}
	}
	return nil
}

// keep starts the prefix's server, and a program that does nothing: without a
// user's program Wine ends its services.
func (p *prefix) keep() error {
	if err := p.wineserver("-p"); err != nil {
		return err
	}
	p.keeper = p.command("ping", "-n", "100000", "127.0.0.1")
	return p.keeper.Start()
}

func (p *prefix) wineserver(arg string) error {
	c := exec.Command(p.server, arg)
	c.Env = p.command().Env
	return c.Run()
}

// stop ends everything that runs in the prefix.
func (p *prefix) stop() error {
	err := p.wineserver("-k")
	if err != nil { // nothing ran
		return nil
	}
	return p.wineserver("-w")
}

func (p *prefix) close() error {
	err := p.stop()
	if p.keeper != nil {
		p.keeper.Wait() // it was ended
	}
	return errors.Join(err, p.lock.Close())
}

// build cross-compiles the product.
func build(t testing.TB) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "tandem.exe")
	c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", exe, "../../cmd/tandem")
	c.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("build for Windows: %v\n%s", err, out)
	}
	return exe
}

// eventually waits until something holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("it never came to be that %s", what)
}
