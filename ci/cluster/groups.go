// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path"
	"slices"
	"strings"
)

// groupName is that of the control groups that hold all machines of a cluster, below this process' own:
// the name of its state folder, so that clusters with different folders leave each other alone.
func groupName(state string) string { return path.Base(state) }

// hierarchy is one of the kernel's hierarchies of control groups.
type hierarchy struct {
	name    string // of its folder: cpu, memory, …, unified
	mounted string // where it is here
	kind    string // cgroup or cgroup2
	options string // to mount it again
	own     string // the group of this process
}

// outside is the folder of the innermost group of this process that is none of a cluster's, and whether
// this process is in one of the cluster's.
func (h hierarchy) outside(cluster string) (folder string, inside bool) {
	group, _, inside := strings.Cut(h.own+"/", "/"+cluster+"/")
	return path.Join(h.mounted, group), inside
}

// parseHierarchies reads them from a mountinfo file and the cgroup file of a process: proc(5).
func parseHierarchies(mounts, groups string) (all []hierarchy) {
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		fields, super := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(super) < 3 || (super[0] != "cgroup" && super[0] != "cgroup2") {
			continue
		}
		h := hierarchy{name: path.Base(fields[4]), mounted: fields[4], kind: super[0]}
		if h.kind == "cgroup2" {
			h.own = ownGroup(groups, "")
		} else {
			h.options, h.own = v1Options(super[2]), ownGroup(groups, controllers(super[2]))
		}
		all = append(all, h)
	}
	return all
}

// controllers are the controllers of a hierarchy as /proc/PID/cgroup names them.
func controllers(super string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(super, ","), func(o string) bool {
		return slices.Contains([]string{"rw", "ro", "xattr", "clone_children", "noprefix", "cpuset_v2_mode"}, o) || strings.HasPrefix(o, "release_agent=")
	}), ",")
}

// v1Options are the options by which a hierarchy of version 1 is mounted once more.
func v1Options(super string) string {
	c := controllers(super)
	if strings.HasPrefix(c, "name=") {
		return "none," + c
	}
	return c
}

// ownGroup is the group of a process in the hierarchy of some controllers, / if unknown.
func ownGroup(groups, controllers string) string {
	for line := range strings.Lines(groups) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && f[1] == controllers {
			return f[2]
		}
	}
	return "/"
}
