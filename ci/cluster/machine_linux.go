// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A machine starts in two steps, both of them this program:
//
//	cluster machine FILE   in new namespaces; takes itself into the machine's control
//	                       groups, then starts over in a control group namespace
//	cluster boot FILE      mounts the machine's root, and is its process 1

// start starts a machine in namespaces of its own, in a session of its own: it outlives this
// process. The listener is handed to it, if there is one.
func (m machine) start(self string, groups []string, listener *os.File) (pid int, err error) {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return 0, err
	}
	for _, folder := range []string{"log", "upper", "scratch", "root"} {
		if err := os.MkdirAll(filepath.Join(m.Work, folder), 0o755); err != nil {
			return 0, err
		}
	}
	for _, b := range m.Binds {
		if err := os.MkdirAll(b.From, 0o755); err != nil {
			return 0, err
		}
	}
	file := filepath.Join(m.Work, "machine.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		return 0, err
	}
	out, err := os.Create(filepath.Join(m.Work, "log", "machine.log"))
	if err != nil {
		return 0, err
	}
	defer out.Close()
	cmd := exec.Command(self, append([]string{"machine", file}, groups...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if listener != nil {
		cmd.ExtraFiles = []*os.File{listener}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	pid = cmd.Process.Pid
	return pid, errors.Join(os.WriteFile(filepath.Join(m.Work, "pid"), []byte(strconv.Itoa(pid)), 0o600), cmd.Process.Release())
}

// enterGroups is the first step: it joins control groups and starts over.
func enterGroups(file string, groups []string) error {
	runtime.LockOSThread()
	if err := enter(groups); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("control group namespace: %w", err)
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	return syscall.Exec(self, []string{self, "boot", file}, os.Environ())
}

// boot is the second step: it mounts the root and runs the machine until it is killed.
func boot(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var m machine
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	if err := m.mount(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(m.Name)); err != nil {
		return err
	}
	for name, value := range m.Sysctls {
		if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if m.Forward != "" {
		if err := forward(m.Forward); err != nil {
			return err
		}
	}
	s := &supervisor{running: map[int]program{}}
	go s.startAll(m)
	s.reap()
	return nil
}

// mount makes the machine's tree of files its root.
func (m machine) mount() error {
	root := filepath.Join(m.Work, "root")
	at := func(name string) string { return filepath.Join(root, name) }
	hierarchies, err := readHierarchies()
	if err != nil {
		return err
	}
	var errs []error
	do := func(source, target, kind string, flags uintptr, data string) {
		if len(errs) == 0 {
			if err := unix.Mount(source, target, kind, flags, data); err != nil {
				errs = append(errs, fmt.Errorf("mount %s on %s: %w", cmp.Or(kind, source), target, err))
			}
		}
	}
	folder := func(name string) {
		if err := os.MkdirAll(at(name), 0o755); err != nil {
			errs = append(errs, err)
		}
	}
	do("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	do("overlay", root, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/scratch", m.Root, m.Work, m.Work))
	do("proc", at("proc"), "proc", 0, "")
	do("sys", at("sys"), "sysfs", unix.MS_RDONLY, "")
	do("groups", at("sys/fs/cgroup"), "tmpfs", 0, "mode=755,size=1m")
	for _, h := range hierarchies {
		folder("sys/fs/cgroup/" + h.name)
		do("cgroup", at("sys/fs/cgroup/"+h.name), h.kind, 0, h.options)
	}
	do("dev", at("dev"), "tmpfs", 0, "mode=755,size=1m")
	for _, name := range []string{"dev/pts", "dev/shm", "dev/mqueue"} {
		folder(name)
	}
	do("devpts", at("dev/pts"), "devpts", 0, "newinstance,ptmxmode=0666,mode=0620,gid=5")
	do("shm", at("dev/shm"), "tmpfs", 0, "size=64m")
	do("mqueue", at("dev/mqueue"), "mqueue", 0, "")
	do("run", at("run"), "tmpfs", 0, "mode=755,size=256m")
	do("tmp", at("tmp"), "tmpfs", 0, "mode=1777,size=512m")
	folder("run/lock")
	for _, b := range m.Binds {
		folder(b.To)
		do(b.From, at(b.To), "", unix.MS_BIND, "")
		if b.ReadOnly {
			do("", at(b.To), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := devices(at("dev")); err != nil {
		return err
	}
	if err := m.mask(root, do); err != nil {
		return errors.Join(append(errs, err)...)
	}
	if err := unix.Chdir(root); err != nil {
		return err
	}
	// The old root is on top of the new one, and goes.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return err
	}
	do("", "/", "", unix.MS_REC|unix.MS_SHARED, "") // kubelet passes mounts on to pods
	return errors.Join(append(errs, unix.Chdir("/"))...)
}

// mask puts files over kernel parameters of the whole machine, and makes the other ones read-only.
func (m machine) mask(root string, mount func(source, target, kind string, flags uintptr, data string)) error {
	folder := filepath.Join(root, "run", "masked")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"vm", "kernel", "fs"} {
		target := filepath.Join(root, "proc/sys", name)
		mount(target, target, "", unix.MS_BIND, "")
		mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	for _, name := range slices.Sorted(maps.Keys(m.Masked)) {
		file := filepath.Join(folder, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(m.Masked[name]+"\n"), 0o644); err != nil {
			return err
		}
		mount(file, filepath.Join(root, "proc/sys", name), "", unix.MS_BIND, "")
	}
	return nil
}

// devices makes the few devices of a machine.
func devices(dir string) error {
	for name, number := range map[string][2]uint32{
		"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "kmsg": {1, 11}, "tty": {5, 0},
	} {
		path := filepath.Join(dir, name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))); err != nil {
			return fmt.Errorf("device %s: %w", name, err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for link, to := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			return err
		}
	}
	return nil
}

// forward accepts connections of the listener that was handed to the machine, which is in the
// network namespace of whoever made it, and connects each to an address of the machine.
func forward(to string) error {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(server, client)
					server.Close()
				}()
				_, _ = io.Copy(client, server)
			}()
		}
	}()
	return nil
}

// supervisor keeps a machine's programs running.
type supervisor struct {
	mu      sync.Mutex
	running map[int]program
}

// startAll starts the programs when the machine has its address.
func (s *supervisor) startAll(m machine) {
	for !hasAddress(m.Address) {
		time.Sleep(50 * time.Millisecond)
	}
	for _, p := range m.Programs {
		s.start(p)
		for !p.ready() {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func hasAddress(want string) bool {
	all, _ := net.InterfaceAddrs()
	return slices.ContainsFunc(all, func(a net.Addr) bool { return strings.HasPrefix(a.String(), want+"/") })
}

func (p program) ready() bool {
	network, address, ok := strings.Cut(p.Ready, ":")
	if !ok {
		return true
	}
	c, err := net.Dial(network, address)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func (s *supervisor) start(p program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, err := os.OpenFile(filepath.Join(logDir, p.Name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer out.Close()
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Printf("%s: %v\n", p.Name, err)
		return
	}
	s.running[cmd.Process.Pid] = p
	fmt.Printf("%s: started %s\n", time.Now().Format(time.TimeOnly), p.Name)
	_ = cmd.Process.Release()
}

// reap waits for every process whose parent has ended, as process 1 does, and starts programs
// again that have ended.
func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil { // EINTR, or no child yet
			time.Sleep(20 * time.Millisecond)
			continue
		}
		s.mu.Lock()
		p, ok := s.running[pid]
		delete(s.running, pid)
		s.mu.Unlock()
		if ok {
			fmt.Printf("%s: %s ended: exit %d, signal %d\n", time.Now().Format(time.TimeOnly), p.Name, status.ExitStatus(), status.Signal())
			time.AfterFunc(time.Second, func() { s.start(p) })
		}
	}
}
