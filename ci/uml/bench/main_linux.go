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
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"
)

func main() {
	services := flag.Int("services", 1000, "how many Services")
	changes := flag.Int("changes", 10, "how many changes of one endpoint")
	limit := flag.Duration("limit", 10*time.Minute, "how long each step may take")
	flag.Parse()
	if err := bench(*services, *changes, *limit); err != nil {
		log.Fatal(err)
	}
}

// bench runs each proxy that is there: their programs are named by KUBE_PROXY
// and TANDEM_BIN.
func bench(services, changes int, limit time.Duration) error {
	dir, err := os.MkdirTemp("", "manifests-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	a := newAPI(dir)
	if err := a.fill(services); err != nil {
		return err
	}
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
	b := &rig{api: a, ipvs: h, services: services, limit: limit}
	common := []string{
		"--proxy-mode=ipvs", "--hostname-override=node-1", "--cluster-cidr=10.244.0.0/16",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
	}
	for _, p := range []struct {
		name, program, cleanup string
		source                 []string
	}{
		{"kube-proxy", os.Getenv("KUBE_PROXY"), "--cleanup", []string{"--master=http://127.0.0.1:8001", "--kube-api-content-type=application/json"}},
		{"tandem", os.Getenv("TANDEM_BIN"), "cleanup", []string{"--manifests=" + dir}},
	} {
		if p.program == "" {
			fmt.Printf("bench: %s is skipped: no program\n", p.name)
			continue
		}
		if err := b.run(p.name, exec.Command(p.program, append(p.source, common...)...), changes); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if out, err := exec.Command(p.program, p.cleanup).CombinedOutput(); err != nil {
			fmt.Printf("bench: %s leaves things behind: %v\n%s", p.name, err, out)
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
	fmt.Printf("bench: %s: %d Services x %d: everything after %s; a change p50 %s, worst %s\n",
		name, r.services, endpoints, cold.Round(10*time.Millisecond), took[len(took)/2].Round(100*time.Microsecond), took[len(took)-1].Round(100*time.Microsecond))
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
