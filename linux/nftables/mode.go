// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/linux/nft"
)

// Mode is the nftables mode. Probe and Open are in mode_linux.go; elsewhere
// they fail with an error that they need Linux.
func Mode() dataplane.Mode {
	return dataplane.Mode{
		Name: config.NFTables, System: "linux", Conntrack: true, Announced: true,
		Probe: probe, Open: openBackend, KubeProxy: kubeProxy, Plan: plan,
	}
}

func options(c *config.Config) Options {
	return Options{Mark: 1 << c.MasqueradeBit, Liberal: c.Conntrack.TCPBeLiberal, Count: c.CountConnections, CountEndpoints: c.CountConnections && c.CountEndpoints}
}

func plan(c *config.Config, host *model.Host, ports []*model.Port) dataplane.Plan {
	return dataplane.PlanOf(NewCompiler(options(c)), host, ports, table.Script)
}

var (
	_ dataplane.Evaluator[nft.Key, nft.Value] = (*Compiler)(nil)
	_ dataplane.Finder[nft.Key, nft.Value]    = (*Compiler)(nil)
)

var _ dataplane.Evaluator[nft.Key, nft.Value] = (*Compiler)(nil)

func (*Compiler) Evaluate(objects map[nft.Key]nft.Value, host *model.Host) func(oracle.Packet) oracle.Outcome {
	return nft.NewSim(objects, host).Decide
}

var _ dataplane.Finder[nft.Key, nft.Value] = (*Compiler)(nil)

func (*Compiler) Lookups(objects map[nft.Key]nft.Value, host *model.Host) func(oracle.Packet) []nft.Key {
	return nft.NewSim(objects, host).Lookups
}

func (*Compiler) Text(k nft.Key, v nft.Value) string { return nft.Describe(k, v) }

// Opaque implements dataplane.Evaluator: of a chain, the kernel's rules are compared
// with ours and not decoded.
func (*Compiler) Opaque(k nft.Key, v nft.Value) bool { return nft.Opaque(k, v) }

var _ dataplane.KeyDecoder[nft.Key] = (*Compiler)(nil)

func (*Compiler) DecodeKey(text []byte) (nft.Key, error) { return table.DecodeKey(text) }
