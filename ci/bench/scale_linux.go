// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/linux/ipvs"
	"github.com/tandem-proxy/tandem/windows/hns"
)

// scale measures one node in very large clusters. The sizes that differ in the number
// of Services alone make the column "grows as": n^1.00 is a cost in proportion to the
// cluster, n^0.00 one that does not depend on it. Each size is a process and a
// network namespace of its own, in a cgroup that counts its kernel memory and limits it
// all.
//
// CPU is that of the process and of its system calls; what the kernel frees later, in
// threads of its own, is in no figure. Time is not fitted: it depends on what else the
// machine does.
func scale() bench {
	return bench{
		name: "scale", about: "one node in clusters of up to 100,000 Services, and with extreme ones",
		rows: func(options) []row {
			return []row{
				{What: "everything programmed, inputs read: CPU", of: "cold CPU", by: median, Grows: true, Unit: seconds},
				{What: "same, time", of: "cold", by: median, Unit: seconds},
				{What: "objects", of: "objects", by: median, Grows: true},
				{What: "restart: CPU to read back and compare", of: "restart CPU", by: median, Grows: true, Unit: seconds, Goal: goal{AtMost: 1.5, In: scaleMiddle.String()}},
				{What: "same, time", of: "restart", by: median, Unit: seconds, Goal: goal{AtMost: 1.5, In: scaleMiddle.String()}},
				{What: "same, time to read back", of: "read back", by: median, Unit: seconds},
				{What: "same, time to compare", of: "compare", by: median, Unit: seconds},
				{What: "same, writes", of: "restart writes", by: most, Grows: true, Goal: goal{Zero: true}},
				{What: "one endpoint replaced: CPU, p50", of: "replaced CPU", by: median, Grows: true, Unit: seconds},
				{What: "same, p99", of: "replaced CPU", by: p99, Unit: seconds},
				{What: "same, time, p50", of: "replaced", by: median, Unit: seconds},
				{What: "same, most writes", of: "replaced writes", by: most, Grows: true},
				{What: "one endpoint added or removed: CPU, p50", of: "scaled CPU", by: median, Grows: true, Unit: seconds},
				{What: "same, p99", of: "scaled CPU", by: p99, Unit: seconds},
				{What: "same, time, p50", of: "scaled", by: median, Unit: seconds},
				{What: "same, most writes", of: "scaled writes", by: most, Grows: true},
				{What: "audit: CPU", of: "audit CPU", by: median, Grows: true, Unit: seconds},
				{What: "resident memory, inputs included", of: "resident", by: median, Grows: true, Unit: memory},
				{What: "kernel memory", of: "kernel memory", by: median, Grows: true, Unit: memory},
			}
		},
		run: runScale,
	}
}

// scaleMiddle is the size of the goals.
var scaleMiddle = world{services: 50000, endpoints: 5}

// scaleSizes are the columns.
func scaleSizes(short bool) []world {
	if short {
		return []world{{services: 100, endpoints: 5}, {services: 1000, endpoints: 5}, {services: 1, endpoints: 300}, {services: 1, endpoints: 5, ports: 20}, {services: 100, endpoints: 5, affinity: true}}
	}
	return []world{
		{services: 10000, endpoints: 5},
		scaleMiddle,
		{services: 100000, endpoints: 5},
		{services: 1, endpoints: 5000},
		{services: 1, endpoints: 30000},
		{services: 1, endpoints: 5, ports: 1000},
		{services: 10000, endpoints: 5, affinity: true},
	}
}

func runScale(ctx context.Context, o options, f *figures) error {
	f.World = o.mode + " mode, by Services x endpoints"
	f.Sizes = map[string]float64{}
	var all []contender
	for _, w := range scaleSizes(o.short) {
		if os.Getenv(inNamespace) == w.String() {
			return scaleChild(ctx, o.mode, w)
		}
		if !o.chosen(w.String()) {
			continue
		}
		if w == (world{services: w.services, endpoints: 5}) {
			f.Sizes[w.String()] = float64(w.services)
		}
		all = append(all, contender{name: w.String(), peer: true, round: func(ctx context.Context, s samples) error {
			group := memoryGroup(os.Getpid())
			defer os.Remove(group) // of a child that was killed
			return apart(ctx, w.String(), filepath.Join(o.dir, "samples.json"), s)
		}})
	}
	if err := inRounds(ctx, cmp.Or(o.rounds, 1), all, f); err != nil {
		return err
	}
	f.Peers = nil // they were to let one fail alone
	return nil
}

// scaleChild measures one size in this process and leaves the samples for its parent.
func scaleChild(ctx context.Context, mode string, w world) error {
	s := samples{}
	err := scaleOnce(ctx, mode, w, s)
	text, encoding := json.Marshal(s)
	return errors.Join(err, encoding, os.WriteFile(os.Getenv(inNamespace+"_SAMPLES"), text, 0o600))
}

func scaleOnce(ctx context.Context, mode string, w world, s samples) (err error) {
	group, err := joinMemoryGroup(memoryGroup(os.Getppid()))
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernel memory is not measured:", err)
	}
	defer func() { err = errors.Join(err, group.leave()) }()
	if err := ip("link set lo up"); err != nil {
		return err
	}
	p, err := openPath(ctx, scaleMode(mode), w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	before := group.kernel()
	if err := p.program(s); err != nil {
		return err
	}
	debug.FreeOSMemory()
	s.add("resident", resident(os.Getpid()))
	if after := group.kernel(); after > before {
		s.add("kernel memory", after-before)
	}
	if err := errors.Join(p.replace(s, "replaced", 200), p.resize(s, "scaled", 100)); err != nil {
		return err
	}
	if err := p.audit(s); err != nil {
		return err
	}
	return p.restart(s)
}

// scaleMode opens a mode: on this kernel, or for want of IPVS and HNS in memory.
func scaleMode(name string) opener {
	switch m := config.Mode(name); m {
	case ipvs.Name:
		return inMemory(ipvs.NewCompiler(ipvs.Options{}), dataplane.Limits{})
	case hns.Name:
		return inMemory(hns.NewCompiler(hns.Newest()), dataplane.Limits{})
	default:
		return ofMode(m)
	}
}

// scaleMemory bounds each size: memory of the process and of the kernel for it.
const scaleMemory = 3 << 30

// kernelMemory is a cgroup (version 1) that counts memory of the kernel. Empty, it
// counts nothing.
type kernelMemory string

// memoryGroup is the folder of the cgroup for the child of a process.
func memoryGroup(parent int) string {
	return fmt.Sprintf("/sys/fs/cgroup/memory/tandem-bench-%d", parent)
}

func joinMemoryGroup(dir string) (kernelMemory, error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	k := kernelMemory(dir)
	err := os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte(strconv.Itoa(scaleMemory)), 0o644)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return k, nil
}

// kernel returns the bytes that the kernel has for the group.
func (k kernelMemory) kernel() float64 {
	text, _ := os.ReadFile(filepath.Join(string(k), "memory.kmem.usage_in_bytes")) // none without a group
	n, _ := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	return n
}

// leave moves the process out, so that the group can be removed.
func (k kernelMemory) leave() error {
	if k == "" {
		return nil
	}
	err := os.WriteFile("/sys/fs/cgroup/memory/cgroup.procs", []byte("0"), 0o644)
	return errors.Join(err, os.Remove(string(k)))
}
