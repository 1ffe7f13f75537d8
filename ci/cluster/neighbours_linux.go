// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Neighbours are programs of other projects that are in clusters beside a Service proxy, each as its users run it, but
// for flannel, of which that part runs which moves packets. README.md says which are not here.

// neighbours installs them in the cluster that runs, one after the other, shows that they work, and removes them. It
// prints a row of a table for each.
func (c *cluster) neighbours(ctx context.Context) (err error) {
	if err := c.findParts(ctx, "where"); err != nil {
		return err
	}
	if c.Parts["neighbours"], err = c.script(ctx, "neighbours"); err != nil {
		return err
	}
	if err := c.step("images of neighbours", func() error { return c.neighbourImages(ctx) }); err != nil {
		return err
	}
	if err := c.step("load", func() error { return c.startLoad(ctx) }); err != nil {
		return err
	}
	defer func() { _, _ = c.kubectl(ctx, nil, "delete", "namespace", "load", "neighbours", "--wait=false") }()
	if err := c.apply(ctx, "neighbours.yaml", nil); err != nil {
		return err
	}
	if err := c.rolledOut(ctx, "neighbours", "daemonset/web"); err != nil {
		return err
	}
	// The control machine has no Service proxy: its API server reaches webhooks and metrics-server through that of a node.
	if err := c.inMachine(ctx, controlName, fmt.Sprintf("ip route replace %s via %s", serviceNets[0], c.plan.Workers[0].Addr[0])); err != nil {
		return err
	}
	return c.askAll(ctx, "neighbours", neighboursHead, "| %s | %.0f s | %s |\n",
		c.askFlannel("vxlan"), c.askFlannel("host-gw"), c.askMetalLB, c.askPrometheus, c.askMetricsServer)
}

const neighboursHead = "| neighbour | takes | what works |\n|---|---|---|\n"

const prometheusImage = "cluster.invalid/prometheus:lab"

// neighbourImages gives the nodes the neighbours' images, and flannel's program.
func (c *cluster) neighbourImages(ctx context.Context) error {
	program := func(name string) string { return c.tool("neighbours", name) }
	static := func(name, called string) image {
		return image{Names: []string{called}, Files: map[string]string{name: program(name)}, Entrypoint: []string{"/" + name}}
	}
	err := writeImages(filepath.Join(c.State, "images", "neighbours.tar"), []image{
		static("controller", "quay.io/metallb/controller:v0.15.3"), static("speaker", "quay.io/metallb/speaker:v0.15.3"),
		static("metrics-server", "gcr.io/k8s-staging-metrics-server/metrics-server:master"),
		static("prometheus", prometheusImage),
	})
	if err != nil {
		return err
	}
	data, err := os.ReadFile(program("flannel"))
	if err != nil {
		return err
	}
	flannel := filepath.Join(c.State, "images", "flannel")
	if err := os.Remove(flannel); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(flannel, data, 0o755); err != nil {
		return err
	}
	return c.importImages(ctx)
}

// askFlannel has flannel carry packets between the nodes' pods while connections are held and made.
func (c *cluster) askFlannel(backend string) func(context.Context) (answer, error) {
	return func(ctx context.Context) (a answer, err error) {
		a.what = "flannel, " + backend
		conf := fmt.Sprintf(`{"Network":%q,"EnableIPv6":%t,"IPv6Network":%q,"EnableNFTables":true,"Backend":{"Type":%q}}`, podNets[0], !c.plan.Single, podNets[1], backend)
		if err := os.WriteFile(filepath.Join(c.State, "images", "flannel.json"), []byte(conf), 0o644); err != nil {
			return a, err
		}
		var flannels []*exec.Cmd
		defer func() {
			err = errors.Join(err, c.withoutFlannel(ctx))
			for _, f := range flannels {
				_ = f.Wait() // it was killed
			}
		}()
		// The plan's routes go: until flannel has made its own, packets go by the control machine.
		if err := c.eachWay(ctx, "ip route del %s via %s"); err != nil {
			return a, err
		}
		for _, n := range c.plan.Workers {
			f, err := c.in(ctx, n.Name, "env", "NODE_NAME="+n.Name, "/var/lib/images/flannel", "--kube-subnet-mgr",
				"--kubeconfig-file="+configDir+"/admin.conf", fmt.Sprintf("--kube-api-url=https://%s:6443", c.plan.Control.Addr[0]), "--net-config-path=/var/lib/images/flannel.json", "--iface=eth0", "--ip-masq", "--subnet-file=/run/flannel/subnet.env")
			if err != nil {
				return a, err
			}
			log, err := os.Create(filepath.Join(c.work(n.Name), "log", "flannel.log"))
			if err != nil {
				return a, err
			}
			defer log.Close()
			f.Stdout, f.Stderr = log, log
			if err := f.Start(); err != nil {
				return a, err
			}
			flannels = append(flannels, f)
		}
		for _, n := range c.plan.Workers {
			for _, w := range c.plan.Workers {
				if w.Name == n.Name {
					continue
				}
				if err := until(ctx, startTime, func() error { return c.routed(ctx, n, w.Pods[0].String(), backend) }); err != nil {
					return a, err
				}
			}
		}
		time.Sleep(2 * loadTimeout) // what was lost while flannel began
		before, err := c.seen(ctx, "")
		if err != nil {
			return a, err
		}
		time.Sleep(10 * time.Second)
		after, err := c.seen(ctx, "")
		if err != nil {
			return a, err
		}
		d := after.minus(before)
		a.says = fmt.Sprintf("cluster IP and node port of load/server, across nodes: %d new connections, %d failed, %d held, %d broken", d.Made, d.Failed, after.Held, d.Broken)
		if d.Made == 0 || d.Failed+d.Broken > 0 {
			return a, errors.New(a.says)
		}
		return a, nil
	}
}

// routed returns nil where a node has a backend's route to the pods of another.
func (c *cluster) routed(ctx context.Context, n node, pods, backend string) error {
	device := map[string]string{"vxlan": "flannel.1", "host-gw": "eth0"}[backend]
	return c.inMachine(ctx, n.Name, fmt.Sprintf("ip route show %s | grep -w %s", pods, device))
}

// eachWay runs a command on each node for the pods of each other node and its address, in each family.
func (c *cluster) eachWay(ctx context.Context, format string) error {
	return c.onNodes(func(n node) error {
		line := "set -e"
		for _, w := range c.plan.Workers {
			for f, pods := range w.Pods {
				if w.Name != n.Name {
					line += "; " + fmt.Sprintf(format, pods, w.Addr[f])
				}
			}
		}
		return c.inMachine(ctx, n.Name, line)
	})
}

// withoutFlannel removes what flannel made, and has packets go the plan's way again.
func (c *cluster) withoutFlannel(ctx context.Context) error {
	const clean = "kill -9 $(pidof flannel); for l in flannel.1 flannel-v6.1; do ip link del $l; done; for t in 'ip flannel-ipv4' 'ip6 flannel-ipv6'; do nft delete table $t; done; true"
	err := c.onNodes(func(n node) error { return c.inMachine(ctx, n.Name, "("+clean+") 2>/dev/null") })
	return errors.Join(err, c.eachWay(ctx, "ip route replace %s via %s"))
}

// fromOutside asks a URL from the control machine, which is no node, several times, and returns the different answers.
func (c *cluster) fromOutside(ctx context.Context, from string) (answers []string, err error) {
	const times = 40
	for range times {
		cmd, err := c.in(ctx, controlName, "curl", "--silent", "--show-error", "--fail", "--max-time", "5", from)
		if err != nil {
			return nil, err
		}
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", from, err, out)
		}
		if text := string(out); !slices.Contains(answers, text) {
			answers = append(answers, text)
		}
	}
	return answers, nil
}

const metalLBClass = "metallb.io/lab"

// askMetalLB has MetalLB publish two Services in the nodes' network.
func (c *cluster) askMetalLB(ctx context.Context) (a answer, err error) {
	a.what = "MetalLB, L2"
	manifest, err := os.ReadFile(c.tool("neighbours", "metallb-native.yaml"))
	if err != nil {
		return a, err
	}
	text := strings.ReplaceAll(string(manifest), "- --log-level=info", "- --log-level=info\n        - --lb-class="+metalLBClass)
	if _, err := c.kubectl(ctx, []byte(text), "apply", "--server-side", "--filename=-"); err != nil {
		return a, err
	}
	defer func() {
		_, gone := c.kubectl(ctx, []byte(text), "delete", "--filename=-", "--wait=false")
		err = errors.Join(err, gone)
	}()
	if err := errors.Join(c.rolledOut(ctx, "metallb-system", "deployment/controller"), c.rolledOut(ctx, "metallb-system", "daemonset/speaker")); err != nil {
		return a, err
	}
	values := map[string]string{"Pool": "172.18.200.1-172.18.200.9", "Class": metalLBClass}
	if err := until(ctx, startTime, func() error { return c.apply(ctx, "metallb.yaml", values) }); err != nil { // its webhook may be starting
		return a, err
	}
	var ips []string
	for _, name := range []string{"balanced", "balanced-local"} {
		err := until(ctx, startTime, func() error {
			ip, err := c.kubectl(ctx, nil, "--namespace=neighbours", "get", "service", name, "--output=jsonpath={.status.loadBalancer.ingress[0].ip}")
			if err == nil && ip == "" {
				err = fmt.Errorf("no address for Service %s", name)
			}
			if err == nil { // ARP, and the rules
				err = c.inMachine(ctx, controlName, "curl --silent --fail --max-time 2 http://"+ip+"/hostname")
			}
			if err == nil {
				ips = append(ips, ip)
			}
			return err
		})
		if err != nil {
			return a, err
		}
	}
	servers, err := c.fromOutside(ctx, "http://"+ips[0]+"/hostname")
	if err != nil {
		return a, err
	}
	local, err := c.fromOutside(ctx, "http://"+ips[1]+"/clientip")
	if err != nil {
		return a, err
	}
	other := func(client string) bool { return !strings.HasPrefix(client, c.plan.Control.Addr[0].String()+":") }
	if len(servers) != len(c.plan.Workers) || slices.ContainsFunc(local, other) {
		return a, fmt.Errorf("servers %q, and with policy Local clients %q", servers, local)
	}
	for _, ip := range ips { // where no node needs ARP for it
		if err := c.onNodes(func(n node) error {
			return c.inMachine(ctx, n.Name, "curl --silent --fail --max-time 5 http://"+ip+"/hostname")
		}); err != nil {
			return a, err
		}
	}
	a.says = fmt.Sprintf("a client outside reaches %d of %d servers by the address that a node answers ARP for, and with policy Local is seen with its own address; nodes reach both; its webhook through a cluster IP", len(servers), len(c.plan.Workers))
	return a, nil
}

// askPrometheus has Prometheus scrape the proxies with the chart's alerts.
func (c *cluster) askPrometheus(ctx context.Context) (a answer, err error) {
	a.what = "Prometheus, with the chart's alerts"
	if err := errors.Join(c.configMap(ctx, c.proxy.Mode, "0.0.0.0:10249"), c.restart(ctx)); err != nil {
		return a, err
	}
	rules, err := os.ReadFile(filepath.Join(c.repo, "installers/kubernetes/chart/files/alerts.yaml"))
	if err != nil {
		return a, err
	}
	quoted, err := json.Marshal(string(rules))
	if err != nil {
		return a, err
	}
	var targets []string
	for _, n := range c.plan.Workers {
		targets = append(targets, fmt.Sprintf("%q", n.Addr[0].String()+":10249"))
	}
	if err := c.apply(ctx, "prometheus.yaml", map[string]string{"Image": prometheusImage, "Alerts": string(quoted), "Targets": strings.Join(targets, ", ")}); err != nil {
		return a, err
	}
	if err := c.rolledOut(ctx, "neighbours", "deployment/prometheus"); err != nil {
		return a, err
	}
	var up, series int
	err = until(ctx, startTime, func() (err error) {
		if up, err = c.promCount(ctx, `up{job="tandem"} == 1`); err == nil && up != len(c.plan.Workers) {
			err = fmt.Errorf("%d nodes are scraped", up)
		}
		if err == nil {
			series, err = c.promCount(ctx, `{job="tandem"}`)
		}
		return err
	})
	if err != nil {
		return a, err
	}
	var d struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, State, LastError string }
			}
		}
	}
	evaluated := 0
	err = until(ctx, startTime, func() error {
		if err := c.prometheus(ctx, "rules", &d); err != nil {
			return err
		}
		evaluated = 0
		for _, g := range d.Data.Groups {
			for _, r := range g.Rules {
				if r.Health != "ok" || r.State == "firing" {
					return fmt.Errorf("alert %s: %s, %s: %s", r.Name, r.Health, r.State, r.LastError)
				}
				evaluated++
			}
		}
		if evaluated == 0 {
			return errors.New("no alerts")
		}
		return nil
	})
	a.says = fmt.Sprintf("%d nodes scraped, %d series; %d alerts evaluated, none fires", up, series, evaluated)
	return a, err
}

// prometheus asks Prometheus through the API server's proxy of Services.
func (c *cluster) prometheus(ctx context.Context, path string, into any) error {
	out, err := c.kubectl(ctx, nil, "get", "--raw", "/api/v1/namespaces/neighbours/services/prometheus:9090/proxy/api/v1/"+path)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), into)
}

// promCount returns how many series a query has.
func (c *cluster) promCount(ctx context.Context, query string) (int, error) {
	var d struct {
		Data struct{ Result []json.RawMessage }
	}
	err := c.prometheus(ctx, "query?query="+url.QueryEscape(query), &d)
	return len(d.Data.Result), err
}

// askMetricsServer installs metrics-server, an aggregated API behind a Service.
func (c *cluster) askMetricsServer(ctx context.Context) (a answer, err error) {
	a.what = "metrics-server"
	base := c.tool("neighbours", "metrics-server.base")
	if _, err := c.kubectl(ctx, nil, "apply", "--server-side", "--kustomize="+base); err != nil {
		return a, err
	}
	defer func() {
		_, gone := c.kubectl(ctx, nil, "delete", "--kustomize="+base, "--wait=false")
		err = errors.Join(err, gone)
	}()
	const insecure = `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--kubelet-insecure-tls"}]`
	if err := c.system(ctx, "patch", "deployment", "metrics-server", "--type=json", "--patch="+insecure); err != nil {
		return a, err
	}
	if err := c.rolledOut(ctx, "kube-system", "deployment/metrics-server"); err != nil {
		return a, err
	}
	var lines []string
	err = until(ctx, startTime, func() error {
		out, err := c.kubectl(ctx, nil, "top", "nodes", "--no-headers")
		if lines = strings.Split(strings.TrimSpace(out), "\n"); err == nil && len(lines) != len(c.plan.Workers) {
			err = fmt.Errorf("%q", out)
		}
		return err
	})
	a.says = fmt.Sprintf("`kubectl top nodes` has %d nodes; the API server reaches it through its cluster IP", len(lines))
	return a, err
}
