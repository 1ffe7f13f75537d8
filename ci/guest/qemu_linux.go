// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// qemu boots a kernel in QEMU.
type qemu struct {
	program string
	root    string // where its packages are unpacked; empty where it is installed
	kernel  string // its image
	modules string // the folder of its modules; the last element is its version
	kvm     bool
}

// String describes it for messages.
func (q *qemu) String() string {
	how := "TCG, in its own time"
	if q.kvm {
		how = "KVM"
	}
	return fmt.Sprintf("QEMU (%s) with Linux %s", how, filepath.Base(q.modules))
}

// findQEMU finds QEMU, installed or in the cache, and a kernel.
func findQEMU(ctx context.Context, g *guest) (engine, error) {
	if runtime.GOARCH != "amd64" {
		return nil, fmt.Errorf("no kernels are fetched for %s", runtime.GOARCH)
	}
	dir, err := cache()
	if err != nil {
		return nil, err
	}
	q := &qemu{}
	if q.program, err = exec.LookPath("qemu-system-x86_64"); err != nil {
		q.root = filepath.Join(dir, "qemu")
		if q.program, err = exec.LookPath(filepath.Join(q.root, "usr/bin/qemu-system-x86_64")); err != nil {
			return nil, errors.New("neither installed nor in the cache (run ci/setup/run)")
		}
	}
	if err := q.findKernel(dir, g.Kernel); err != nil {
		return nil, err
	}
	if err := findModprobe(guestPath); err != nil {
		return nil, err
	}
	q.kvm = virtualizes() && q.boots(ctx)
	return q, nil
}

// findKernel finds the kernel of a version, or the newest.
func (q *qemu) findKernel(dir, version string) error {
	newest := ""
	found, err := filepath.Glob(filepath.Join(dir, "linux-"+cmp.Or(version, "*")))
	for _, f := range found {
		if later(f, newest) {
			newest = f
		}
	}
	if err != nil || newest == "" {
		return fmt.Errorf("no %s in %s (run ci/setup/run)", strings.TrimSpace("kernel "+version), dir)
	}
	kernels, _ := filepath.Glob(filepath.Join(newest, "boot", "vmlinuz-*"))
	modules, _ := filepath.Glob(filepath.Join(newest, "lib", "modules", "*"))
	if len(kernels) != 1 || len(modules) != 1 {
		return fmt.Errorf("%s does not hold one kernel (remove it and run ci/setup/run)", newest)
	}
	q.kernel, q.modules = kernels[0], modules[0]
	return nil
}

// later reports whether the version of Linux in a folder's name is later than
// another's.
func later(a, b string) bool {
	var major, minor [2]int
	for i, name := range []string{a, b} {
		_, _ = fmt.Sscanf(filepath.Base(name), "linux-%d.%d", &major[i], &minor[i]) // not a version: 0
	}
	return major[0] > major[1] || major[0] == major[1] && minor[0] > minor[1]
}

// virtualizes reports whether KVM can be expected to work: the device may exist on a
// processor without virtualization, and a guest then hangs.
func virtualizes() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = f.Close() // nothing was written
	info, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && regexp.MustCompile(`(?m)^flags\s*:.* (vmx|svm)\b`).Match(info)
}

// boots reports whether KVM boots the kernel and runs a program.
func (q *qemu) boots(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	with := *q
	with.kvm = true
	g := guest{Memory: 512, Out: io.Discard}
	code, err := g.run(ctx, &with, []string{"/bin/true"})
	return err == nil && code == 0
}

var _ engine = (*qemu)(nil)

func (q *qemu) command(ctx context.Context, dir string, g *guest) (*exec.Cmd, error) {
	initrd := filepath.Join(dir, "initrd")
	if err := q.writeImage(initrd, filepath.Join(dir, "guest"), g.With, g.Without); err != nil {
		return nil, fmt.Errorf("making the guest's files: %w", err)
	}
	clock := ""
	if !q.kvm {
		clock = "GUEST_CLOCK=instructions "
	}
	args := []string{
		"-machine", "pc", "-m", strconv.Itoa(g.Memory), "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", q.kernel, "-initrd", initrd,
		"-serial", "file:" + filepath.Join(dir, "log"), "-serial", "stdio",
		"-append", "console=ttyS0 loglevel=4 panic=-1 mitigations=off nokaslr rdinit=/guest/init.sh GUEST_DIR=/guest GUEST_CONSOLE=/dev/ttyS1 " + clock + g.Append,
	}
	if q.kvm {
		args = append(args, "-accel", "kvm", "-cpu", "host", "-smp", strconv.Itoa(runtime.NumCPU()))
	} else {
		// An instruction takes 4 ns, and when the processor is idle the clock jumps to
		// the next timer. That works with one processor only. AVX would be slower.
		args = append(args, "-accel", "tcg,tb-size=256", "-cpu", "Nehalem", "-smp", "1", "-icount", "shift=2,sleep=off", "-rtc", "clock=vm")
	}
	cmd := exec.CommandContext(ctx, q.program, args...)
	if q.root != "" {
		libraries := []string{}
		for _, d := range []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"} {
			libraries = append(libraries, filepath.Join(q.root, d))
		}
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"))
		for _, d := range []string{"usr/share/qemu", "usr/share/seabios"} {
			cmd.Args = append(cmd.Args, "-L", filepath.Join(q.root, d))
		}
	}
	return cmd, nil
}
