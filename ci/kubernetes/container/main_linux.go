// SPDX-License-Identifier: Apache-2.0

// Command container starts a program as a container runtime does: in a folder
// as its root, read-only, with the capabilities of its pod's spec and no
// others. Namespaces of the network are those of the caller, as with hostNetwork.
//
//	container [-privileged] [-add NET_ADMIN,...] ROOT PROGRAM [ARGUMENT ...]
//
// It sets no seccomp profile.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

func main() {
	privileged := flag.Bool("privileged", false, "with all capabilities, and kernel parameters that can be written")
	add := flag.String("add", "", "the capabilities, with commas between")
	flag.Parse()
	if err := run(*privileged, *add, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "container:", err)
		os.Exit(1)
	}
}

// run becomes the program. It only returns with an error.
func run(privileged bool, add string, args []string) error {
	if len(args) < 2 {
		return errors.New("name the root and the program")
	}
	runtime.LockOSThread() // namespaces and capabilities are those of a thread
	if err := enter(args[0], privileged); err != nil {
		return err
	}
	if !privileged {
		if err := confine(add); err != nil {
			return err
		}
	}
	return unix.Exec(args[1], args[1:], os.Environ())
}

// enter makes a folder the root, and read-only.
func enter(root string, privileged bool) error {
	proc := filepath.Join(root, "proc")
	steps := []func() error{
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount(root, root, "", unix.MS_BIND, "") },
		func() error { return unix.Mount("proc", proc, "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "") },
		func() error { return unix.Mount("", root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "") },
	}
	if !privileged {
		sys := filepath.Join(proc, "sys")
		steps = append(steps,
			func() error { return unix.Mount(sys, sys, "", unix.MS_BIND, "") },
			func() error { return unix.Mount("", sys, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "") })
	}
	steps = append(steps, func() error { return unix.Chroot(root) }, func() error { return unix.Chdir("/") })
	for i, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("enter %s, step %d: %w", root, i+1, err)
		}
	}
	return nil
}

// number is the number of a capability in linux/capability.h.
func number(name string) (int, error) {
	switch name {
	case "NET_ADMIN":
		return unix.CAP_NET_ADMIN, nil
	case "NET_RAW":
		return unix.CAP_NET_RAW, nil
	}
	return 0, fmt.Errorf("capability %q is not known here", name)
}

// confine drops all capabilities but some, also for programs with file capabilities.
func confine(add string) error {
	keep := map[int]bool{}
	for _, name := range strings.FieldsFunc(add, func(r rune) bool { return r == ',' }) {
		n, err := number(name)
		if err != nil {
			return err
		}
		keep[n] = true
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if keep[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
