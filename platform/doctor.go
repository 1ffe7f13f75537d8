// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/diagnosis"
	"github.com/tandem-proxy/tandem/core/model"
)

// Examine checks this machine: each mode by trying it, what kube-proxy has left, the
// system, and the addresses that the proxy listens on. Running is the status of a proxy
// that runs here, nil without one. It changes nothing that lasts.
func Examine(ctx context.Context, c *config.Config, running *diagnosis.Running) []diagnosis.Check {
	checks := examineModes(ctx, c)
	for _, m := range Local() {
		checks = append(checks, examineLeftovers(ctx, m)...)
	}
	checks = append(checks, diagnosis.Node(Facts(ctx, c, running))...)
	checks = append(checks, examineOwnAddresses(c))
	return append(checks, examineListeners(c, running != nil)...)
}

// Facts reads the input of the system's checks.
func Facts(ctx context.Context, c *config.Config, running *diagnosis.Running) *diagnosis.Facts {
	f := thisSystem().facts(ctx, c)
	f.Mode, f.Running = string(c.Mode), running
	if running != nil && c.Mode == config.Auto {
		f.Mode = running.Mode
	}
	f.NodePorts = [2]int{int(c.NodePortRange.First), int(c.NodePortRange.Last)}
	f.IPv6 = slices.ContainsFunc(c.ClusterCIDRs, func(p netip.Prefix) bool { return p.Addr().Is6() }) || running != nil && running.IPv6
	return f
}

// examineModes tries all modes, and returns which one the configuration selects.
func examineModes(ctx context.Context, c *config.Config) (checks []diagnosis.Check) {
	for _, m := range Local() {
		check := diagnosis.Check{ID: "mode-" + string(m.Name), Level: diagnosis.OK, Found: "works"}
		if err := Probe(ctx, m); err != nil {
			check.Level, check.Found = diagnosis.Note, err.Error()
		}
		checks = append(checks, check)
	}
	chosen := diagnosis.Check{ID: "mode", Level: diagnosis.Fail, Found: fmt.Sprintf("mode %s unavailable: see the checks of the modes", c.Mode)}
	here := thisSystem()
	wanted, err := here.candidates(c)
	if err != nil {
		chosen.Found = err.Error()
	}
	if choice, err := firstWorking(ctx, wanted); err == nil && len(wanted) > 0 { // as run does
		chosen.Level, chosen.Found = diagnosis.OK, fmt.Sprintf("mode %s selects %s here", c.Mode, choice.Name)
		if choice.Fallback() != "" {
			chosen.Level = diagnosis.Warn
			chosen.Found += fmt.Sprintf(", as %s is unavailable", wanted[0].Name)
		}
		if lacks := here.loopbackOnly(c); lacks != "" {
			chosen.Level, chosen.Fix = diagnosis.Warn, "run it as root or with "+lacks
			chosen.Found += ", on loopback addresses only: this process lacks " + lacks
		}
	}
	return append([]diagnosis.Check{chosen}, checks...)
}

func examineLeftovers(ctx context.Context, m dataplane.Mode) []diagnosis.Check {
	if m.KubeProxy == nil {
		return nil
	}
	check := diagnosis.Check{ID: "leftovers-" + string(m.Name), Level: diagnosis.OK, Found: "no rules of kube-proxy"}
	left, err := m.KubeProxy(ctx)
	switch {
	case err != nil:
		check.Level, check.Found = diagnosis.Note, "checking for kube-proxy's rules failed: "+err.Error()
	case len(left.Found) > 0:
		check.Level, check.Fix = diagnosis.Warn, "stop kube-proxy, then run tandem with --takeover: it removes them once its own rules are in place"
		check.Found = "rules of kube-proxy: " + strings.Join(left.Found, ", ")
	}
	return []diagnosis.Check{check}
}

// examineOwnAddresses reports whether external IPs that are this node's own addresses are served.
func examineOwnAddresses(c *config.Config) diagnosis.Check {
	check := diagnosis.Check{ID: "external-ips", Level: diagnosis.OK, Found: "an external IP that is an address of this node is served where no process listens, and rejected with the process's name where one does; other nodes program nothing for it"}
	if c.ExternalIPs.Only {
		check.Found = "only external IPs of --" + config.AllowedExternalIPs + " are served"
		return check
	}
	l, err := Listeners()
	if err == nil {
		_, err = l.At([]model.Listener{{Proto: model.TCP, At: netip.MustParseAddrPort("127.0.0.1:1")}})
		err = errors.Join(err, l.Close())
	}
	if err != nil {
		check.Level = diagnosis.Note
		check.Found = "external IPs that are addresses of this node are rejected: " + err.Error()
		check.Fix = "list the addresses that Services may use in --" + config.AllowedExternalIPs
	}
	return check
}

// examineListeners tries to listen as run does. Beside a tandem that runs, an address in use
// is no finding: it reports itself where it could not listen.
func examineListeners(c *config.Config, running bool) (checks []diagnosis.Check) {
	for _, at := range [][2]string{{"listen-metrics", c.HTTPAddress}, {"listen-health", c.HealthAddress}} {
		id, address := at[0], at[1]
		if address == "" {
			continue
		}
		check := diagnosis.Check{ID: id, Level: diagnosis.OK, Found: address + " is free"}
		l, err := net.Listen("tcp", address)
		if err == nil {
			err = l.Close()
		}
		switch {
		case err != nil && running:
			check.Level, check.Found = diagnosis.Note, err.Error()+": expected beside a running tandem"
		case err != nil:
			check.Level, check.Found = diagnosis.Warn, err.Error()
			check.Fix = "stop what listens there (" + diagnosis.Listeners(runtime.GOOS) + " shows it), or choose another address"
		}
		checks = append(checks, check)
	}
	return checks
}
