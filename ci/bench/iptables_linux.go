// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/linux/iptables"
)

// iptablesVariant compares the iptables mode with the rules that kube-proxy
// writes, in the same namespace and with the same commands. Of kube-proxy only
// iptables-restore is measured: what the program itself does comes on top. Both
// programs on an API server are what `bench kubernetes -mode iptables` measures.
func iptablesVariant(variant string) bench {
	times := map[string]float64{"legacy": 5, "nft": 20}[variant]
	return bench{
		name: "iptables-" + variant, about: "iptables mode compared with kube-proxy's rules, " + variant + " variant",
		rows: func(options) []row {
			return []row{
				{What: "everything programmed", of: "cold", by: median, Unit: seconds, Ratio: true, Goal: goal{Times: 2}},
				{What: "CPU of that", of: "cold CPU", by: median, Unit: seconds, Ratio: true},
				{What: "objects of that", of: "objects", by: median},
				{What: "transactions of that", of: "transactions", by: median},
				{What: "one change, p50", of: "change", by: median, Unit: seconds, Ratio: true},
				{What: "CPU of one change", of: "change CPU", by: mean, Unit: seconds, Ratio: true, Goal: goal{Times: times}},
				{What: "first packet to a random Service, minus one to no Service", of: "packet", by: least, Unit: seconds, Ratio: true, Goal: goal{Times: 5}},
				{What: "restart: read back", of: "read back", by: median, Unit: seconds},
				{What: "restart: compared", of: "compare", by: median, Unit: seconds},
				{What: "restart: writes", of: "restart writes", by: most, Goal: goal{Zero: true}},
			}
		},
		run: func(ctx context.Context, o options, f *figures) error { return runIPTables(ctx, variant, o, f) },
	}
}

func runIPTables(ctx context.Context, variant string, o options, f *figures) error {
	w := world{services: cmp.Or(o.world.services, 10000), endpoints: 5, udp: true} // new flows are a packet each
	if o.short {
		w.services = 300
	}
	f.World = fmt.Sprintf("%s, iptables mode, %s variant; of kube-proxy only its rules, written by iptables-restore", w, variant)
	for _, args := range []string{"link set lo up", "route add 10.0.0.0/8 dev lo"} {
		if err := ip(args); err != nil {
			return err
		}
	}
	undo, err := useVariant(o.dir, variant)
	if err != nil {
		return fmt.Errorf("not measured: %w", err)
	}
	defer undo()
	idle, err := firstUDP(ctx, w, false)
	if err != nil {
		return err
	}
	return inRounds(ctx, cmp.Or(o.rounds, 1), []contender{
		{name: "Tandem", round: func(ctx context.Context, s samples) error { return tandemRules(ctx, w, idle, s) }},
		{name: "kube-proxy's rules", peer: true, round: func(ctx context.Context, s samples) error {
			note, err := kubeProxyRules(ctx, w, idle, s)
			if note != "" {
				f.Notes = append(f.Notes, note)
			}
			return err
		}},
	}, f)
}

func tandemRules(ctx context.Context, w world, idle float64, s samples) (err error) {
	p, err := openPath(ctx, ofMode(iptables.Name), w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.program(s); err != nil {
		return err
	}
	if err := p.replace(s, "change", 20); err != nil {
		return err
	}
	packet, err := firstUDP(ctx, w, true)
	if err != nil {
		return err
	}
	s.add("packet", packet-idle)
	return p.restart(s)
}

// tooLong is the timeout for the rules of kube-proxy: the nft
// variant takes many minutes for all of them at once.
const tooLong = time.Minute

// kubeProxyRules loads what kube-proxy writes, by iptables-restore. Where that
// takes too long the rules get there in parts, so that the rest can be measured.
func kubeProxyRules(ctx context.Context, w world, idle float64, s samples) (note string, err error) {
	defer func() { err = errors.Join(err, flushNAT()) }()
	limited, cancel := context.WithTimeout(ctx, tooLong)
	err = restore(limited, w.kubeProxyRules(0, w.services, 0), s, "cold")
	unfinished := limited.Err() != nil
	cancel()
	if unfinished {
		note = "kube-proxy's rules were cancelled after " + tooLong.String() + ": everything programmed takes more than these figures."
		err = errors.Join(flushNAT(), w.kubeProxyInParts(ctx))
	}
	if err != nil {
		return note, err
	}
	for i := range 5 {
		if err := restore(ctx, w.kubeProxyRules(i, i+1, i+1), s, "change"); err != nil {
			return note, err
		}
	}
	packet, err := firstUDP(ctx, w, true)
	s.add("packet", packet-idle)
	return note, err
}

// kubeProxyInParts writes the chains of some Services at a time.
func (w world) kubeProxyInParts(ctx context.Context) error {
	const part = 500
	for from := 0; from < w.services; from += part {
		only := w
		only.services = from + part // those after it have no chains yet
		if err := restore(ctx, only.kubeProxyRules(from, from+part, 0), samples{}, ""); err != nil {
			return err
		}
	}
	return nil
}

// restore runs iptables-restore and records what it took, also where it fails.
func restore(ctx context.Context, rules string, s samples, name string) error {
	start := time.Now()
	cmd := exec.CommandContext(ctx, "iptables-restore", "--noflush")
	cmd.Stdin = strings.NewReader(rules)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("iptables-restore: %w: %s", err, out)
	}
	s.add(name, time.Since(start).Seconds())
	if state := cmd.ProcessState; state != nil {
		s.add(name+" CPU", (state.UserTime() + state.SystemTime()).Seconds())
	}
	return err
}

func flushNAT() error {
	var err error
	for _, what := range []string{"-F", "-X"} {
		err = errors.Join(err, exec.Command("iptables", "-t", "nat", what).Run())
	}
	return err
}

// firstUDP measures what a new flow costs in seconds, in the least of some rounds:
// packets to random Services, which are translated and then dropped, so that none
// of them is ever a known flow. Those to no Service are the cost without
// Services.
func firstUDP(ctx context.Context, w world, services bool) (each float64, err error) {
	table := func(verb string) error {
		out, err := exec.CommandContext(ctx, "iptables", "-t", "mangle", verb, "POSTROUTING", "-p", "udp", "-j", "DROP").CombinedOutput()
		if err != nil {
			return fmt.Errorf("drop after translation: %w: %s", err, out)
		}
		return nil
	}
	if err := table("-A"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, table("-D")) }()
	conn, err := net.ListenPacket("udp4", ":0")
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	to := make([]*net.UDPAddr, 4096)
	for i := range to {
		to[i] = &net.UDPAddr{IP: net.IPv4(10, 1, 1, 1), Port: servicePort}
		if services {
			to[i].IP = w.vip(rng.IntN(w.services)).Addr().AsSlice()
		}
	}
	for range 7 {
		start := time.Now()
		for _, a := range to {
			_, _ = conn.WriteTo([]byte("x"), a) // dropped; the error is expected
		}
		if took := time.Since(start).Seconds() / float64(len(to)); each == 0 || took < each {
			each = took
		}
	}
	return each, nil
}

// useVariant makes the plain command names run one variant of iptables, until undo.
func useVariant(dir, variant string) (undo func(), err error) {
	dir, err = variantLinks(dir, variant)
	if err != nil {
		return nil, err
	}
	path := os.Getenv("PATH")
	return func() { _ = os.Setenv("PATH", path) }, os.Setenv("PATH", dir+":"+path)
}

// variantLinks makes a folder in which the plain command names run one variant. The
// machine's own choice is not changed.
func variantLinks(dir, variant string) (string, error) {
	multi, err := exec.LookPath("xtables-" + variant + "-multi")
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "iptables-"+variant)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			if err := os.Symlink(multi, filepath.Join(dir, family+verb)); err != nil {
				return "", err
			}
		}
	}
	return dir, nil
}
