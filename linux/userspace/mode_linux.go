package userspace

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay"
)

// probe tries IPv4, which every node needs. Where there is no nat table for
// IPv6, openBackend serves IPv4 alone, and ports of IPv6 are Gaps.
func probe(ctx context.Context) error { return Probe(ctx, model.IPv4) }

func openBackend(*config.Config) (dataplane.Backend, error) {
	families := []model.Family{model.IPv4}
	if ipv6() && Probe(context.Background(), model.IPv6) == nil {
		families = append(families, model.IPv6)
	}
	d := Open(families, relay.Options{Log: slog.Default()})
	return dataplane.New(NewCompiler(families...), d), nil
}

// Probe finds out whether the nat table of a family can hold our rules, by
// writing one of each kind to a chain that no packet meets. The error says what
// is missing.
func Probe(ctx context.Context, f model.Family) error {
	chain := fmt.Sprintf("TANDEM-PROBE-%08x", rand.Uint32())
	at := netip.AddrPortFrom(Shelter(f), 80)
	k := Key{Kind: KindEntry, Family: f, Chain: chain, Proto: model.TCP, At: at, From: netip.PrefixFrom(at.Addr(), 8*3).Masked()}
	try := newBatch()
	try.chain(chain, []Rule{
		{Dst: k.From, Local: true, Jump: returns},
		{In: "probe+", Jump: returns},
	})
	try.entry(k, entryRule(k, Target{Relay: RelayID{Port: model.PortID{Service: model.ServiceName{Namespace: "tandem", Name: "probe"}}}}, 80).String())
	if err := tableOf(f).write(ctx, try); err != nil {
		return fmt.Errorf("the nat table of %s cannot be used: %w", f, err)
	}
	clean := newBatch()
	clean.drop(chain)
	if err := tableOf(f).write(context.WithoutCancel(ctx), clean); err != nil {
		return fmt.Errorf("the nat table of %s, after a probe: %w", f, err)
	}
	return nil
}

// ipv6 reports whether lo may have addresses of IPv6.
func ipv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}
