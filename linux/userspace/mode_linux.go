package userspace

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/linux/iptables"
)

// probe tries IPv4, which every node needs. Where there is no nat table for
// IPv6, openBackend serves IPv4 alone, and ports of IPv6 are Gaps.
func probe(ctx context.Context) error {
	table, err := iptables.OpenNAT(ctx)
	if err != nil {
		return err
	}
	defer table.Close()
	return try(ctx, table, model.IPv4)
}

func openBackend(*config.Config) (dataplane.Backend, error) {
	ctx := context.Background()
	table, err := iptables.OpenNAT(ctx)
	if err != nil {
		return nil, err
	}
	families := []model.Family{model.IPv4}
	if slices.Contains(table.Families(), model.IPv6) && ipv6() {
		families = append(families, model.IPv6)
	}
	return dataplane.New(NewCompiler(families...), Open(table, relay.Options{Log: slog.Default()})), nil
}

// try finds out whether the nat table of a family can hold our rules, by writing
// one of each kind to a chain that no packet meets. The error says what is
// missing.
func try(ctx context.Context, table *iptables.NATTable, f model.Family) error {
	chain := fmt.Sprintf("TANDEM-PROBE-%08x", rand.Uint32())
	at := netip.AddrPortFrom(Shelter(f), 80)
	k := Key{Kind: KindEntry, Family: f, Chain: chain, Proto: model.TCP, At: at, From: netip.PrefixFrom(at.Addr(), 8*3).Masked()}
	b := newBatch()
	b.chain(chain, []Rule{
		{Dst: k.From, Local: true, Jump: returns},
		{In: "probe+", Jump: returns},
	})
	b.entry(k, entryRule(k, Target{Relay: RelayID{Port: model.PortID{Service: model.ServiceName{Namespace: "tandem", Name: "probe"}}}}, 80).String())
	if err := table.Restore(ctx, f, b.text()); err != nil {
		return err
	}
	clean := newBatch()
	clean.drop(chain)
	return table.Restore(context.WithoutCancel(ctx), f, clean.text())
}

// ipv6 reports whether lo may have addresses of IPv6.
func ipv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}
