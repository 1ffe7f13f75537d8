// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func readHierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	all := parseHierarchies(string(mounts), string(groups))
	if len(all) == 0 {
		return nil, errors.New("no control groups are mounted")
	}
	return all, nil
}

// clusterShares is the weight of a cluster's group: by default a group weighs as much as one process that
// is in none, such as a compiler, and all machines together would come to a standstill beside a few of these.
const clusterShares = "8192"

// makeGroups makes the control groups of a machine, or of the command, in those of its cluster, and
// returns their folders.
func makeGroups(cluster, name string) (folders []string, err error) {
	all, err := readHierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		folder, _ := h.outside(cluster)
		for _, part := range []string{cluster, name} {
			parent := folder
			folder = filepath.Join(folder, part)
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return nil, err
			}
			values := map[string][]byte{}
			switch {
			case h.name == "cpuset": // empty in a new group
				for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
					if values[file], err = os.ReadFile(filepath.Join(parent, file)); err != nil {
						return nil, err
					}
				}
			case part == cluster && slices.Contains(strings.Split(h.options, ","), "cpu"):
				values["cpu.shares"] = []byte(clusterShares)
			}
			for file, value := range values {
				if err := os.WriteFile(filepath.Join(folder, file), value, 0); err != nil {
					return nil, err
				}
			}
		}
		folders = append(folders, folder)
	}
	return folders, nil
}

// enter takes this process into groups.
func enter(folders []string) error {
	for _, f := range folders {
		if err := os.WriteFile(filepath.Join(f, "cgroup.procs"), []byte("0"), 0); err != nil {
			return err
		}
	}
	return nil
}

// commandName is the group of the command that brings a cluster up: with it in there, what it has
// started ends with the cluster, whatever became of the command itself.
const commandName = "command"

func enterCommand(cluster string) error {
	folders, err := makeGroups(cluster, commandName)
	if err != nil {
		return err
	}
	return enter(folders)
}

// leaveCommand takes this process, which is to remove the cluster's groups, out of them.
func leaveCommand(cluster string) error {
	all, err := readHierarchies()
	if err != nil {
		return err
	}
	var folders []string
	for _, h := range all {
		if folder, inside := h.outside(cluster); inside {
			folders = append(folders, folder)
		}
	}
	return enter(folders)
}

// groupDepth is how far below the root of a hierarchy our groups are looked for: a command that
// was killed may have been in another group than this one.
const groupDepth = 4

// ourGroups are the groups of a cluster, in every hierarchy.
func ourGroups(cluster string) (found []string, err error) {
	all, err := readHierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		_ = filepath.WalkDir(h.mounted, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || !d.IsDir():
				return nil
			case d.Name() == cluster:
				found = append(found, path)
				return fs.SkipDir
			case strings.Count(strings.TrimPrefix(path, h.mounted), "/") >= groupDepth:
				return fs.SkipDir
			}
			return nil
		})
	}
	return found, nil
}

// removeGroups kills all that is in the groups of a cluster and removes them.
func removeGroups(cluster string) error {
	const tries = 200
	var err error
	for range tries {
		var found []string
		if found, err = ourGroups(cluster); err != nil || len(found) == 0 {
			return err
		}
		for _, g := range found {
			killGroup(g)
			err = removeTree(g)
		}
		time.Sleep(50 * time.Millisecond) // processes are ending
	}
	return fmt.Errorf("control groups remain: %w", err)
}

func killGroup(group string) {
	for _, pid := range processes(group) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// processes are those in a group and the groups below it.
func processes(group string) (pids []int) {
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil
		}
		text, _ := os.ReadFile(path)
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	return pids
}

// removeTree removes a group and those below it, the lowest first.
func removeTree(group string) (err error) {
	var folders []string
	_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			folders = append(folders, path)
		}
		return nil
	})
	slices.Reverse(folders)
	for _, f := range folders {
		err = os.Remove(f)
	}
	return err
}
