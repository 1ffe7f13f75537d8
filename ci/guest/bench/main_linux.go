package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/moby/ipvs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func main() {
	services := flag.Int("services", 1000, "how many Services")
	changes := flag.Int("changes", 10, "how many changes of one endpoint")
	limit := flag.Duration("limit", 10*time.Minute, "how long each step may take")
	only := flag.String("only", "", "measure this one, here, where nothing else may be")
	flag.Parse()
	var err error
	if *only == "" {
		err = each()
	} else {
		err = bench(*only, *services, *changes, *limit)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// proxies are those to compare, by the variables that name their programs.
var proxies = []struct{ name, program string }{{"kube-proxy", "KUBE_PROXY"}, {"tandem", "TANDEM_BIN"}}

// each runs this program once for each proxy that is there, in a network
// namespace of its own: what one leaves behind is in no other's way.
func each() (failed error) {
	fmt.Printf("%-11s %9s %12s %12s %12s %14s %10s\n", "", "Services", "cold start", "change, p50", "worst", "netlink sends", "programs")
	for _, p := range proxies {
		if os.Getenv(p.program) == "" {
			fmt.Printf("%s is skipped: %s names no program\n", p.name, p.program)
			continue
		}
		cmd := exec.Command("/proc/self/exe", append([]string{"-only", p.name}, os.Args[1:]...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", p.name, err)) // the next is measured all the same
		}
	}
	return failed
}

// bench measures one proxy against the stand-in for the API server.
func bench(name string, services, changes int, limit time.Duration) error {
	if err := makeNode(); err != nil {
		return err
	}
	a := newAPI()
	a.fill(services)
	l, err := net.Listen("tcp", "127.0.0.1:8001")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: a}
	defer server.Close()
	go func() { _ = server.Serve(l) }()
	h, err := ipvs.New("")
	if err != nil {
		return err
	}
	defer h.Close()
	r := &rig{api: a, ipvs: h, services: services, limit: limit}
	for _, p := range proxies {
		if p.name == name {
			return r.run(name, exec.Command(os.Getenv(p.program), flags...), changes)
		}
	}
	return fmt.Errorf("no proxy %q", name)
}

// flags are what both are called with.
var flags = []string{
	"--master=http://127.0.0.1:8001", "--kube-api-content-type=application/json",
	"--proxy-mode=ipvs", "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16",
	"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
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
			err = netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}})
		}
		if err != nil {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	return nil
}

type rig struct {
	api      *api
	ipvs     *ipvs.Handle
	services int
	limit    time.Duration
	round    int
}

// run measures one proxy from its start and ends it.
func (r *rig) run(name string, cmd *exec.Cmd, changes int) error {
	out, err := os.Create("/run/" + name + ".log")
	if err != nil {
		return err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := r.until(200*time.Millisecond, r.complete); err != nil {
		text, _ := os.ReadFile(out.Name())
		return fmt.Errorf("%w\n%s", err, last(string(text), 3000))
	}
	cold := time.Since(begin)
	time.Sleep(5 * time.Second) // what else it does at its start
	var took []time.Duration
	for i := range changes {
		d, err := r.change(i * r.services / changes)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	slices.Sort(took)
	sends, programs := r.count(cmd.Process.Pid, changes*r.services/(changes+1))
	fmt.Printf("%-11s %9d %12s %12s %12s %14s %10s\n", name, r.services, cold.Round(10*time.Millisecond),
		took[len(took)/2].Round(100*time.Microsecond), took[len(took)-1].Round(100*time.Microsecond), sends, programs)
	return nil
}

// complete reports whether every destination is there, as the kernel lists them.
func (r *rig) complete() (bool, error) {
	if last, err := r.destinations(r.services - 1); err != nil || len(last) < endpoints {
		return false, nil
	}
	text, err := os.ReadFile("/proc/net/ip_vs")
	return strings.Count(string(text), "\n  -> ") >= r.services*endpoints+1, err
}

func (r *rig) destinations(i int) ([]*ipvs.Destination, error) {
	return r.ipvs.GetDestinations(&ipvs.Service{
		AddressFamily: unix.AF_INET, Protocol: unix.IPPROTO_TCP, Address: net.ParseIP(clusterIP(i)).To4(), Port: 80, Netmask: ^uint32(0),
	})
}

// change replaces an endpoint of Service i and waits for the new one.
func (r *rig) change(i int) (time.Duration, error) {
	r.round++
	want := endpoint(i, 0, r.round)
	begin := time.Now()
	if err := r.api.modify("endpointslices", i, slice(i, r.round)); err != nil {
		return 0, err
	}
	err := r.until(time.Millisecond, func() (bool, error) {
		have, err := r.destinations(i)
		return slices.ContainsFunc(have, func(d *ipvs.Destination) bool { return d.Address.String() == want && d.Weight > 0 }), err
	})
	took := time.Since(begin)
	time.Sleep(time.Second) // so that the next one finds it at rest
	return took, err
}

func (r *rig) until(every time.Duration, done func() (bool, error)) error {
	for end := time.Now().Add(r.limit); time.Now().Before(end); time.Sleep(every) {
		if ok, err := done(); ok || err != nil {
			return err
		}
	}
	return errors.New("not within " + r.limit.String())
}

func last(s string, n int) string { return s[max(0, len(s)-n):] }
