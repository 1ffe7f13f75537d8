// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// tools are what the tests and init.sh may start, where the host has it.
var tools = strings.Fields(`sh bash mount umount mkdir ln cat chmod sleep sync uname ls rm cp mv grep sed awk head tail sort wc true false
	env id date dmesg stty ps kill sysctl unshare modprobe lsmod ip tc ss ping nft ipset ipvsadm conntrack strace timeout
	iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore
	iptables-legacy iptables-legacy-save iptables-legacy-restore ip6tables-legacy ip6tables-legacy-save ip6tables-legacy-restore
	iptables-nft iptables-nft-save iptables-nft-restore ip6tables-nft ip6tables-nft-save ip6tables-nft-restore`)

// guestPath is where init.sh looks for them.
const guestPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// findModprobe returns an error where no folder of a path has modprobe: init.sh and the guest's kernel load
// modules with the host's, so that without it a guest has neither IPVS nor nf_tables.
func findModprobe(path string) error {
	for _, dir := range filepath.SplitList(path) {
		if _, err := exec.LookPath(filepath.Join(dir, "modprobe")); err == nil {
			return nil
		}
	}
	return fmt.Errorf("the guest has no modprobe for its kernel's modules, such as ip_vs: none in %s here (Debian: apt-get install kmod)", path)
}

// files are what they read.
var files = strings.Fields(`/etc/passwd /etc/group /etc/hosts /etc/nsswitch.conf /etc/protocols /etc/services /etc/iproute2
	/etc/ethertypes /usr/share/iproute2 /usr/lib/*/xtables`)

// moduleFolders hold the modules of networks.
var moduleFolders = strings.Fields(`kernel/net/netfilter/ kernel/net/ipv4/ kernel/net/ipv6/ kernel/net/sctp/ kernel/net/xfrm/
	kernel/net/packet/ kernel/net/bridge/ kernel/drivers/net/dummy. kernel/drivers/net/veth.`)

// image writes an initramfs.
type image struct {
	*archive
	seen map[string]bool // by path in the guest
}

// writeImage writes the guest's first file system: the tools, the tree of
// sources of the working directory, whatever files the command and the
// environment name, what matches the patterns of with, the kernel's modules but those
// of without, and guest as /guest.
func (q *qemu) writeImage(path, guest string, with, without []string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	im := &image{&archive{w: w}, map[string]bool{"/": true}}
	err = errors.Join(im.fill(guest, with), im.addModules(q.modules, without), im.archive.close(), w.Flush(), f.Close())
	return err
}

func (im *image) fill(guest string, with []string) error {
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/root", "/var", "/guest"} {
		im.seen[dir] = true
		if err := im.put(dir, fs.ModeDir|0o755, 0, nil); err != nil {
			return err
		}
	}
	for _, name := range []string{"init.sh", "command"} {
		if err := im.copyFile(filepath.Join(guest, name), filepath.Join("/guest", name), 0o755); err != nil {
			return err
		}
	}
	command, err := os.ReadFile(filepath.Join(guest, "command"))
	if err != nil {
		return err
	}
	var programs []string
	for _, word := range regexp.MustCompile(`'(/[^']+)'`).FindAllSubmatch(command, -1) {
		programs = append(programs, string(word[1]))
	}
	for _, name := range tools {
		if path, err := exec.LookPath(name); err == nil {
			programs = append(programs, path)
		} else if path, err := exec.LookPath("/usr/sbin/" + name); err == nil {
			programs = append(programs, path)
		}
	}
	here, err := os.Getwd()
	if err != nil {
		return err
	}
	for _, pattern := range slices.Concat(files, with) {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return err
		}
		for _, path := range found {
			if err := im.addTree(path); err != nil {
				return err
			}
		}
	}
	return errors.Join(im.addPrograms(programs), im.addTree(sources(here)))
}

// addPrograms adds files, and the libraries of those that are programs. Missing files
// and folders are skipped.
func (im *image) addPrograms(paths []string) error {
	regular := paths[:0:0]
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			regular = append(regular, path)
		}
	}
	plugins, _ := filepath.Glob("/usr/lib/*/xtables/*.so") // the pattern is right
	// It fails if one of them is static, with output for the others.
	out, err := exec.Command("ldd", append(plugins, regular...)...).Output()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		return err
	}
	for _, library := range regexp.MustCompile(`(?m)^\s.*?(/\S+) \(0x`).FindAllSubmatch(out, -1) {
		regular = append(regular, string(library[1]))
	}
	for _, path := range regular {
		if err := im.add(path); err != nil {
			return err
		}
	}
	return nil
}

// sources returns the root of the module that a folder is in, or the folder.
func sources(dir string) string {
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.sum")); err == nil {
			return d
		}
	}
	return dir
}

// addTree adds a folder or a file. Folders of what is built, and of Git, stay.
func (im *image) addTree(root string) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist"}, d.Name()) && path != root:
			return fs.SkipDir
		case d.IsDir() || d.Type().IsRegular() || d.Type() == fs.ModeSymlink:
			return im.add(path)
		}
		return nil
	})
}

// add adds a file of the host's, with the folders and the symbolic links that
// lead to it, where they are on the host.
func (im *image) add(path string) error {
	if im.seen[path] {
		return nil
	}
	if err := im.add(filepath.Dir(path)); err != nil {
		return err
	}
	im.seen[path] = true
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return im.put(path, info.Mode(), 0, nil)
	case info.Mode().IsRegular():
		if real, err := filepath.EvalSymlinks(path); err != nil || real != path {
			return errors.Join(err, im.add(real))
		}
		return im.copyFile(path, path, info.Mode())
	case info.Mode().Type() != fs.ModeSymlink:
		return nil
	}
	target, err := os.Readlink(path)
	if err != nil {
		return err
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(path)); err != nil {
		return err
	} else if parent != filepath.Dir(path) {
		return im.add(filepath.Join(parent, filepath.Base(path)))
	} else if err := im.put(path, info.Mode(), int64(len(target)), strings.NewReader(target)); err != nil {
		return err
	} else if !filepath.IsAbs(target) {
		target = filepath.Join(parent, target)
	}
	if _, err := os.Stat(target); err != nil {
		return nil // a dangling link stays one
	}
	return im.add(target)
}

// copyFile adds a file of the host's under a name of the guest's.
func (im *image) copyFile(from, to string, mode fs.FileMode) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return im.put(to, mode, info.Size(), f)
}

// addModules adds the kernel's modules for networks, and what they depend on.
func (im *image) addModules(dir string, without []string) error {
	b, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return err
	}
	needs, wanted := map[string][]string{}, []string(nil)
	for line := range strings.Lines(string(b)) {
		module, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		needs[module] = strings.Fields(rest) // all of them, not only the first step
		if slices.ContainsFunc(moduleFolders, func(f string) bool { return strings.HasPrefix(module, f) }) {
			wanted = append(wanted, module)
		}
	}
	base := filepath.Join("/lib/modules", filepath.Base(dir))
	if err := im.addParents(filepath.Join(base, "x")); err != nil {
		return err
	}
	for _, module := range wanted {
		for _, m := range append(needs[module], module) {
			name, _, _ := strings.Cut(filepath.Base(m), ".")
			to := filepath.Join(base, m)
			if im.seen[to] || slices.Contains(without, strings.ReplaceAll(name, "-", "_")) {
				continue
			}
			im.seen[to] = true
			if err := errors.Join(im.addParents(to), im.copyFile(filepath.Join(dir, m), to, 0o644)); err != nil {
				return err
			}
		}
	}
	index, err := filepath.Glob(filepath.Join(dir, "modules.*"))
	for _, path := range index {
		err = errors.Join(err, im.copyFile(path, filepath.Join(base, filepath.Base(path)), 0o644))
	}
	return err
}

// addParents adds the folders of a path that only the guest has.
func (im *image) addParents(path string) error {
	dir := filepath.Dir(path)
	if im.seen[dir] {
		return nil
	}
	im.seen[dir] = true
	if err := im.addParents(dir); err != nil {
		return err
	}
	if info, err := os.Lstat(dir); err == nil && info.Mode().Type() == fs.ModeSymlink {
		im.seen[dir] = false
		return im.add(dir) // such as /lib
	}
	return im.put(dir, fs.ModeDir|0o755, 0, nil)
}

// archive writes cpio archives in the format "newc", which the kernel reads
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w      io.Writer
	inodes int
}

// put adds a file of that size. A symbolic link's content is its target.
func (a *archive) put(name string, mode fs.FileMode, size int64, content io.Reader) error {
	a.inodes++
	unix := map[fs.FileMode]uint32{fs.ModeDir: 0o040000, fs.ModeSymlink: 0o120000, 0: 0o100000}[mode.Type()] | uint32(mode.Perm())
	name = strings.TrimPrefix(name, "/") + "\x00"
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inodes, unix, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name), 0) + name
	if _, err := io.WriteString(a.w, head+padding(int64(len(head)))); err != nil {
		return err
	}
	if content != nil {
		if _, err := io.CopyN(a.w, content, size); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	_, err := io.WriteString(a.w, padding(size))
	return err
}

// close writes the end.
func (a *archive) close() error { return a.put("TRAILER!!!", 0, 0, nil) }

func padding(n int64) string { return "\x00\x00\x00"[:-n&3] }
