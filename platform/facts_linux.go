// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/linux/host"
	"github.com/tandem-proxy/tandem/linux/nft"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// factsLimit is how long reading other programs' rules may take.
const factsLimit = 10 * time.Second

// linuxFacts reads the input of doctor's checks.
func linuxFacts(ctx context.Context, c *config.Config) *diagnosis.Facts {
	ctx, cancel := context.WithTimeout(ctx, factsLimit)
	defer cancel()
	f := host.Facts()
	f.BaseChains, _ = nft.BaseChains(ctx) // not there: no nftables in this kernel
	f.Flowtables, _ = nft.Flowtables(ctx)
	for _, chain := range f.BaseChains {
		if (chain.Family == "ip" || chain.Family == "ip6") && (chain.Name == "PREROUTING" || chain.Name == "INPUT") {
			f.NFTTables = append(f.NFTTables, chain.Family+" "+chain.Table)
		}
	}
	xtables.AddFacts(ctx, f)
	f.Modules = host.ModuleFacts(modulesOf(c.Mode)...)
	f.Memory, f.OOMKills = cgroupUsage()
	return f
}

// modulesOf are the modules that a mode needs, besides those that they load.
func modulesOf(m config.Mode) []string {
	names := []string{"nf_conntrack", "nf_nat"}
	switch m {
	case "nftables":
		names = append(names, "nf_tables", "nft_chain_nat")
	case "ipvs":
		names = append(names, "ip_vs", "ip_vs_rr", "ip_set", "dummy")
	}
	return names
}

// cgroupUsage returns the memory of this process's cgroup, and how many processes
// were killed in it. Only version 2 has both.
func cgroupUsage() (u diagnosis.Usage, kills int) {
	const unlimited = 1 << 60 // version 1 has a number near the largest instead
	if limit := cgroupMemory(os.ReadFile); limit < unlimited {
		u.Limit = uint64(limit)
	}
	own, _ := os.ReadFile("/proc/self/cgroup")
	_, at, found := strings.Cut(strings.TrimSpace(string(own)), "0::")
	if !found {
		return u, 0
	}
	dir := path.Join("/sys/fs/cgroup", path.Clean("/"+at))
	text, _ := os.ReadFile(path.Join(dir, "memory.current"))
	u.Used, _ = strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	events, _ := os.ReadFile(path.Join(dir, "memory.events"))
	for line := range strings.Lines(string(events)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			kills, _ = strconv.Atoi(n)
		}
	}
	return u, kills
}
