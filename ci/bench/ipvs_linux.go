// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/watch/apitest"
)

// ipvsMode measures Tandem's ipvs mode and kube-proxy's, one after the other in
// one boot of a guest (ci/guest), each in a network namespace of its own and with
// the same flags: the time from the start of the process to everything programmed,
// and from one endpoint's change, as sent by the API server, to the new
// destination in the kernel. Afterwards strace, where it is there, counts for one
// more change what is sent over netlink and which programs are started.
//
//	world ─▶ apitest (instead of an API server) ─▶ proxy ─▶ IPVS
//	            ▲ one endpoint replaced                        │
//	            └────────────────── looked for here ◀──────────┘
//
// The guest's processor is slow and its clock is its own, so only the ratios mean
// something.
func ipvsMode() bench {
	return bench{
		name: "ipvs", about: "ipvs mode compared with kube-proxy's, on a kernel with IPVS",
		rows: func(options) []row {
			return []row{
				{What: "process start to everything programmed", of: "cold", by: median, Unit: seconds, Ratio: true},
				{What: "one endpoint replaced, event to the kernel, p50", of: "change", by: median, Unit: seconds, Ratio: true},
				{What: "the same, worst", of: "change", by: most, Unit: seconds, Ratio: true},
				{What: "netlink messages of one change", of: "sends", by: median, Ratio: true},
				{What: "programs started for it", of: "programs", by: median},
			}
		},
		run: runIPVS,
	}
}

// inNamespace is the environment variable of a process that measures one
// contender in its own namespace.
const inNamespace = "TANDEM_BENCH_CONTENDER"

func runIPVS(ctx context.Context, o options, f *figures) error {
	w := world{services: cmp.Or(o.world.services, 1000), endpoints: 5}
	o.changes, o.patience = cmp.Or(o.changes, 10), cmp.Or(o.patience, 10*time.Minute)
	if o.short {
		w.services, o.changes, o.patience = 20, 3, 2*time.Minute
	}
	f.World = w.String() + ", ipvs mode, in a guest: only the ratios mean something"
	programs := map[string]string{"Tandem": o.tandem, "kube-proxy": o.kubeProxy}
	if only := os.Getenv(inNamespace); only != "" {
		s := samples{}
		err := ipvsRound(ctx, w, o, programs[only], s)
		text, encoding := json.Marshal(s)
		return errors.Join(err, encoding, os.WriteFile(os.Getenv(inNamespace+"_SAMPLES"), text, 0o600))
	}
	var all []contender
	for _, name := range []string{"Tandem", "kube-proxy"} {
		if !o.chosen(name) {
			continue
		}
		if programs[name] == "" {
			f.Notes = append(f.Notes, name+" is not measured: no program is named")
			continue
		}
		all = append(all, contender{name: name, peer: name != "Tandem", round: func(ctx context.Context, s samples) error {
			return apart(ctx, name, o.dir+"/samples.json", s)
		}})
	}
	return inRounds(ctx, cmp.Or(o.rounds, 1), all, f)
}

// apart runs this program again for one contender, in a network namespace of
// its own: what one leaves behind is in no other's way.
func apart(ctx context.Context, name, file string, s samples) error {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespace+"="+name, inNamespace+"_SAMPLES="+file)
	cmd.Stderr = os.Stderr // its table on the standard output is empty
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	more := samples{}
	if err := json.Unmarshal(text, &more); err != nil {
		return err
	}
	for what, values := range more {
		s[what] = append(s[what], values...)
	}
	return nil
}

// ipvsRun is one proxy under measurement.
type ipvsRun struct {
	world
	ctx  context.Context
	api  *apitest.Server
	ipvs *ipvs.Handle

	patience time.Duration // for each step
}

// ipvsRound measures one proxy from its start and ends it.
func ipvsRound(ctx context.Context, w world, o options, program string, s samples) error {
	if err := makeNode(); err != nil {
		return err
	}
	api, err := serveAPI(w)
	if err != nil {
		return err
	}
	defer api.Stop()
	h, err := ipvs.New("")
	if err != nil {
		return err
	}
	defer h.Close()
	r := &ipvsRun{world: w, ctx: ctx, api: api, ipvs: h, patience: o.patience}
	begin := time.Now()
	p, err := launch(o.dir, exec.Command(program,
		"--master="+api.URL(), "--kube-api-content-type=application/json",
		"--proxy-mode=ipvs", "--hostname-override="+nodeName, "--cluster-cidr="+podCIDR,
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s"))
	if err != nil {
		return err
	}
	defer p.stop()
	if err := until(ctx, o.patience, 200*time.Millisecond, func() (bool, error) { return r.complete(), p.ended() }); err != nil {
		return fmt.Errorf("%w\n%s", err, p.said())
	}
	s.add("cold", time.Since(begin).Seconds())
	sleep(ctx, 5*time.Second) // what else it does at its start
	for i := range o.changes {
		if err := r.change(i*w.services/o.changes, s); err != nil {
			return err
		}
	}
	r.count(p.pid(), w.services-1, s)
	return nil
}

// serveAPI serves the world to the proxies.
func serveAPI(w world) (*apitest.Server, error) {
	api, err := apitest.Start(apitest.Options{Plain: true})
	if err != nil {
		return nil, err
	}
	n := node()
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.244.1.0/24", []string{"10.244.1.0/24"}
	api.Put(n)
	for i := range w.services {
		api.Put(w.service(i), w.slice(i, 0, 0))
	}
	return api, nil
}

// makeNode gives this namespace what a node has.
func makeNode() error {
	if err := netlink.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}); err != nil {
		return err
	}
	for _, name := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err == nil && name == "eth0" {
			err = netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: nodeIP.AsSlice(), Mask: net.CIDRMask(24, 32)}})
		}
		if err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}

// complete reports whether every destination is there, as the kernel lists them.
func (r *ipvsRun) complete() bool {
	if last, err := r.destinations(r.services - 1); err != nil || len(last) < r.endpoints {
		return false
	}
	text, err := os.ReadFile("/proc/net/ip_vs")
	return err == nil && strings.Count(string(text), "\n  -> ") >= r.services*r.endpoints+1 // and a heading
}

func (r *ipvsRun) destinations(i int) ([]*ipvs.Destination, error) {
	return r.ipvs.GetDestinations(&ipvs.Service{
		AddressFamily: unix.AF_INET, Protocol: unix.IPPROTO_TCP, Address: r.vip(i).Addr().AsSlice(), Port: servicePort, Netmask: ^uint32(0),
	})
}

// change replaces an endpoint of Service i, which was not changed before, and
// waits for the new one.
func (r *ipvsRun) change(i int, s samples) error {
	want := r.pod(i, 0, 1).String()
	begin := time.Now()
	r.api.Put(r.slice(i, 1, 1))
	err := until(r.ctx, r.patience, time.Millisecond, func() (bool, error) {
		have, err := r.destinations(i)
		return slices.ContainsFunc(have, func(d *ipvs.Destination) bool { return d.Address.String() == want && d.Weight > 0 }), err
	})
	s.add("change", time.Since(begin).Seconds())
	sleep(r.ctx, time.Second) // so that the next one finds it at rest
	return err
}
