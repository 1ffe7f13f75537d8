// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// runLoad is the program of the pods of files/load.yaml.
func runLoad(ctx context.Context, args []string) error {
	if args[0] == "serve" {
		l, err := net.Listen("tcp", ":"+loadPort)
		if err != nil {
			return err
		}
		go echo(l)
		<-ctx.Done()
		return nil
	}
	c := caller{say: os.Stdout}
	go func() {
		for ctx.Err() == nil {
			n := c.counts()
			fmt.Printf("{\"Made\":%d,\"Failed\":%d,\"Held\":%d,\"Broken\":%d}\n", n.Made, n.Failed, n.Held, n.Broken)
			time.Sleep(time.Second)
		}
	}()
	c.run(ctx, args[1:])
	return nil
}

// event is something in the life of a cluster, during which connections are held and made.
type event struct {
	what  string
	do    func(context.Context) error
	loses string // a node whose caller counts no more; empty for none
}

// life brings up a cluster with kube-proxy, lets happen what happens to clusters, and has a node die at the end, which
// happens to a cluster of Tandem's, too. It prints a row of a table for each event.
func (c *cluster) life(ctx context.Context) error {
	c.proxy = proxy{kubeProxy, "nftables"}
	c.both = true
	var err error
	if c.earlier, err = c.script(ctx, "../setup/earlier", earlierRelease); err != nil {
		return err
	}
	rows, err := c.live(ctx, append(c.events(), c.death()))
	if err != nil {
		return err
	}
	c.proxy.Name = tandem
	more, err := c.live(ctx, []event{c.death()})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.repo, "ci/cluster/figures/life.md"), []byte(lifeHead+rows+more), 0o644)
}

// earlierRelease is the first of those of ci/netns.
const earlierRelease = "0d30937e10c6cdaf45cea520f7366090c928b9be"

// live brings up a cluster and returns the rows of what happens to it.
func (c *cluster) live(ctx context.Context, events []event) (rows string, err error) {
	if err := c.up(ctx); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, down(c.State)) }()
	if err := c.step("load", func() error { return c.startLoad(ctx) }); err != nil {
		return "", err
	}
	for _, e := range events {
		row, err := c.happen(ctx, e)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.what, err)
		}
		rows += row
		fmt.Fprint(c.out, row)
	}
	return rows, nil
}

const lifeHead = "| event | takes | new connections | failed | held | broken |\n|---|---|---|---|---|---|\n"

// happen lets an event happen and returns its row.
func (c *cluster) happen(ctx context.Context, e event) (string, error) {
	before, err := c.seen(ctx, e.loses)
	if err != nil {
		return "", err
	}
	begun := time.Now()
	if err := e.do(ctx); err != nil {
		return "", err
	}
	took := time.Since(begun)
	time.Sleep(2 * loadTimeout) // what waits for an answer
	after, err := c.seen(ctx, e.loses)
	d := after.minus(before)
	if err == nil && d.Failed+d.Broken > 0 {
		err = c.printComplaints(ctx, begun, e.loses)
	}
	return fmt.Sprintf("| %s | %s s | %d | %d | %d | %d |\n", e.what, seconds(took), d.Made, d.Failed, after.Held, d.Broken), err
}

// startLoad starts servers and callers on all nodes and waits until all connections are held.
func (c *cluster) startLoad(ctx context.Context) error {
	if err := c.apply(ctx, "load.yaml", loadValues()); err != nil {
		return err
	}
	for _, name := range append(callers(), "server") {
		if err := c.rolledOut(ctx, "load", "daemonset/"+name); err != nil {
			return err
		}
	}
	want := int64(2 * heldByEach * len(callers()) * len(c.plan.Workers))
	return until(ctx, startTime, func() error {
		n, err := c.seen(ctx, "")
		if err == nil && n.Held != want {
			err = fmt.Errorf("%d of %d connections are held", n.Held, want)
		}
		return err
	})
}

// callers are the pods that call, but for that of a node; the empty name is none.
func (c *cluster) callers(ctx context.Context, but string) ([]string, error) {
	pods, err := c.kubectl(ctx, nil, "--namespace=load", "get", "pods", "--selector=app=caller", "--field-selector=spec.nodeName!="+but, "--output=name")
	return strings.Fields(pods), err
}

// seen adds up what all callers have seen, but for that of a node.
func (c *cluster) seen(ctx context.Context, but string) (sum counts, err error) {
	pods, err := c.callers(ctx, but)
	if err != nil {
		return sum, err
	}
	for _, pod := range pods {
		said, err := c.kubectl(ctx, nil, "--namespace=load", "logs", "--tail=200", pod)
		if err != nil {
			return sum, err
		}
		n, err := lastCounts(said)
		if err != nil {
			return sum, fmt.Errorf("%s: %w", pod, err)
		}
		sum = sum.plus(n)
	}
	return sum, nil
}

// printComplaints prints why connections failed and broke, each reason with how often.
func (c *cluster) printComplaints(ctx context.Context, since time.Time, but string) error {
	pods, err := c.callers(ctx, but)
	if err != nil {
		return err
	}
	var all strings.Builder
	for _, pod := range pods {
		said, err := c.kubectl(ctx, nil, "--namespace=load", "logs", pod, "--since-time="+since.UTC().Format(time.RFC3339))
		if err != nil {
			return err
		}
		all.WriteString(said)
	}
	for reason, n := range complaints(all.String()) {
		fmt.Fprintf(c.out, "cluster: %d times %s\n", n, reason)
	}
	return nil
}

// events are those of a life, in order: the guide's way from kube-proxy to Tandem, what happens to Tandem
// and to the machines, and the guide's way back.
func (c *cluster) events() []event {
	settings := append(chartSettings("iptables"), "linux.extraArgs={--takeover}")
	park := `{"spec":{"template":{"spec":{"nodeSelector":{"tandem-proxy.github.io/parked":"true"}}}}}`
	unpark := `[{"op":"remove","path":"/spec/template/spec/nodeSelector/tandem-proxy.github.io~1parked"}]`
	return []event{
		{what: "nothing, for 20 s", do: func(context.Context) error { time.Sleep(20 * time.Second); return nil }},
		{what: "kube-proxy → Tandem (kubeadm.md)", do: func(ctx context.Context) error {
			if err := c.system(ctx, "patch", "daemonset", kubeProxy, "--type=merge", "--patch="+park); err != nil {
				return err
			}
			if err := c.chart(ctx, "apply", settings); err != nil {
				return err
			}
			c.proxy.Name = tandem
			return c.ready(ctx)
		}},
		{what: "rolling restart of the DaemonSet", do: c.restart},
		{what: "nftables → iptables in the ConfigMap", do: c.mode("iptables")},
		{what: "iptables → nftables", do: c.mode("nftables")},
		{what: "rollback to an earlier release (" + earlierRelease[:8] + ")", do: func(ctx context.Context) error {
			repository, tag, _ := strings.Cut(strings.TrimSuffix(earlierImage, "-iptables"), ":")
			return errors.Join(c.chart(ctx, "apply", append(slices.Clone(settings), "image.repository="+repository, "image.tag="+tag)), c.ready(ctx))
		}},
		{what: "upgrade from it to this one", do: func(ctx context.Context) error {
			return errors.Join(c.chart(ctx, "apply", settings), c.ready(ctx))
		}},
		{what: "a node is drained, and comes back", do: c.drain(c.plan.Workers[0].Name)},
		{what: "kubelets restart", do: c.kill("kubelet", c.plan.Workers...)},
		{what: "containerds restart", do: c.kill("containerd", c.plan.Workers...)},
		{what: "the API server restarts", do: c.kill("kube-apiserver", c.plan.Control)},
		{what: "60 Deployments are made, and roll at once", do: c.rollDeployments},
		{what: "Tandem → kube-proxy (kubeadm.md)", do: func(ctx context.Context) error {
			if err := c.chart(ctx, "delete", settings); err != nil {
				return err
			}
			if err := c.system(ctx, "patch", "daemonset", kubeProxy, "--type=json", "--patch="+unpark); err != nil {
				return err
			}
			c.proxy.Name = kubeProxy
			return c.ready(ctx)
		}},
		{what: "rolling restart of kube-proxy's", do: c.restart},
	}
}

// earlierImage is an image of the program of earlierRelease.
const earlierImage = "cluster.invalid/tandem:earlier-iptables"

// drain evicts what is not a DaemonSet's from a node, and lets pods come back.
func (c *cluster) drain(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := c.kubectl(ctx, nil, "drain", name, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout="+startTime.String())
		if err != nil {
			return err
		}
		_, err = c.kubectl(ctx, nil, "uncordon", name)
		return errors.Join(err, c.ready(ctx))
	}
}

// death has the last node die at once, as by a power cut, and waits until the cluster has noticed and taken its
// endpoints away.
func (c *cluster) death() event {
	name, of := c.plan.Workers[len(c.plan.Workers)-1].Name, c.proxy.Name
	return event{what: "a node dies, with " + of, loses: name, do: func(ctx context.Context) error {
		pid, err := os.ReadFile(filepath.Join(c.work(name), "pid"))
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(pid))
		if err != nil {
			return err
		}
		if err := syscall.Kill(number, syscall.SIGKILL); err != nil { // process 1 of the machine
			return err
		}
		const notices = 3 * time.Minute // 50 s by default
		if _, err := c.kubectl(ctx, nil, "wait", "node", name, "--for=condition=Ready=Unknown", "--timeout="+notices.String()); err != nil {
			return err
		}
		time.Sleep(10 * time.Second)
		return nil
	}}
}

// system runs kubectl for kube-system.
func (c *cluster) system(ctx context.Context, args ...string) error {
	_, err := c.kubectl(ctx, nil, append([]string{"--namespace=kube-system"}, args...)...)
	return err
}

// restart restarts the proxy's pods, one after another.
func (c *cluster) restart(ctx context.Context) error {
	if err := c.system(ctx, "rollout", "restart", "daemonset/"+c.proxy.Name); err != nil {
		return err
	}
	return c.ready(ctx)
}

// mode changes the mode in kubeadm's ConfigMap and restarts the pods.
func (c *cluster) mode(mode string) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := c.configMap(ctx, mode, ""); err != nil {
			return err
		}
		return c.restart(ctx)
	}
}

// kill ends a program on machines, whose process 1 starts it again, and waits for the nodes.
func (c *cluster) kill(program string, machines ...node) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, n := range machines {
			if err := c.inMachine(ctx, n.Name, "kill -9 $(pidof "+program+")"); err != nil {
				return err
			}
		}
		time.Sleep(5 * time.Second)
		if err := c.apiServer(ctx); err != nil {
			return err
		}
		return c.ready(ctx)
	}
}

// rollDeployments makes Deployments with Services, and has all of them make new pods at once.
func (c *cluster) rollDeployments(ctx context.Context) error {
	const number = 60
	var all strings.Builder
	for i := range number {
		text, err := render("rolling.yaml", map[string]string{"Name": fmt.Sprintf("rolling-%d", i), "Image": pauseImage})
		if err != nil {
			return err
		}
		all.Write(text)
	}
	if _, err := c.kubectl(ctx, []byte(all.String()), "apply", "--server-side", "--filename=-"); err != nil {
		return err
	}
	for _, verb := range [][]string{{"status", "--timeout=6m"}, {"restart"}, {"status", "--timeout=6m"}} {
		if _, err := c.kubectl(ctx, nil, append([]string{"--namespace=load", "rollout", verb[0], "deployment", "--selector=rolling=yes"}, verb[1:]...)...); err != nil {
			return err
		}
	}
	_, err := c.kubectl(ctx, []byte(all.String()), "delete", "--filename=-")
	return err
}
