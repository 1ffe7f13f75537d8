// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// cluster is a cluster that is being made or used.
type cluster struct {
	layout
	plan       plan
	repo       string // the tree whose Tandem runs
	kubernetes string // the version of control plane and kubelets; empty for that of the tests
	proxy      proxy
	both       bool   // nodes have the images of both proxies
	earlier    string // the program of an earlier release, for earlierImage; empty for none
	out        io.Writer
}

// step does a part of the work and says how long it took.
func (c *cluster) step(what string, do func() error) error {
	begun := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintf(c.out, "cluster: %s, %s\n", what, time.Since(begun).Round(100*time.Millisecond))
	return nil
}

// findParts has the folders of the cache that a cluster is made of. The word where for the scripts, if
// given, is that they build nothing.
func (c *cluster) findParts(ctx context.Context, where ...string) (err error) {
	c.Parts = map[string]string{}
	for _, part := range []string{"upstream", "containerd", "coredns"} {
		if c.Parts[part], err = c.script(ctx, "build", append([]string{part}, where...)...); err != nil {
			return err
		}
	}
	c.Parts["kubernetes"] = c.Parts["upstream"]
	if c.kubernetes != "" {
		if c.Parts["kubernetes"], err = c.script(ctx, "kubernetes", append([]string{c.kubernetes}, where...)...); err != nil {
			return err
		}
	}
	c.Root, err = c.script(ctx, "root", where...)
	return err
}

// script runs a script of ci/cluster and returns the folder that it prints.
func (c *cluster) script(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.repo, "ci/cluster", name), args...)
	cmd.Stderr = c.out
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	folder := strings.TrimSpace(string(out))
	if _, err := os.Stat(folder); err != nil {
		return "", fmt.Errorf("%s %s: nothing in the cache, `make cluster` puts it there", name, strings.Join(args, " "))
	}
	return folder, nil
}

// up brings the cluster up. What is there of an earlier one is removed first, and if a step
// fails everything is removed.
func (c *cluster) up(ctx context.Context) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("a cluster takes root: it makes namespaces, control groups and mounts")
	}
	if err := c.step("parts", func() error { return c.findParts(ctx) }); err != nil {
		return err
	}
	if err := down(c.State); err != nil {
		return err
	}
	defer func() {
		if err != nil && os.Getenv("CLUSTER_KEEP") == "" {
			err = errors.Join(err, down(c.State))
		}
	}()
	if err := os.MkdirAll(filepath.Join(c.State, "images"), 0o755); err != nil {
		return err
	}
	if err := enterCommand(groupName(c.State)); err != nil {
		return err
	}
	for _, s := range []struct {
		what string
		do   func() error
	}{
		{"images", func() error { return c.images(ctx) }},
		{fmt.Sprintf("%d machines", len(c.plan.machines())), func() error { return c.machines(ctx) }},
		{"API server", func() error { return c.apiServer(ctx) }},
		{"images on nodes", func() error { return c.importImages(ctx) }},
		{"nodes registered", func() error { return c.nodes(ctx) }},
		{"CoreDNS", func() error { return c.apply(ctx, "coredns.yaml", map[string]string{"DNS": dnsAddress}) }},
		{c.proxy.String(), func() error { return c.install(ctx) }},
		{"all pods ready", func() error { return c.ready(ctx) }},
	} {
		if err := c.step(s.what, s.do); err != nil {
			return err
		}
	}
	return nil
}

// down removes all that a cluster left, whoever made it and however that ended.
func down(state string) error {
	if err := leaveCommand(groupName(state)); err != nil {
		return err
	}
	if err := removeGroups(groupName(state)); err != nil {
		return err
	}
	var err error
	for range 50 { // mounts of machines that are ending
		if err = os.RemoveAll(state); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// images writes the archives that nodes import: the tests' and the proxies'.
func (c *cluster) images(ctx context.Context) error {
	if err := copySelf(filepath.Join(c.bin(), "cluster")); err != nil {
		return err
	}
	pause := filepath.Join(c.State, "pause")
	if err := c.run(ctx, nil, "go", "build", "-C", c.repo, "-o", pause, "./ci/cluster/pause"); err != nil {
		return err
	}
	all := c.allImages(pause)
	if c.earlier != "" {
		all = append(all, image{
			Names: []string{earlierImage}, Base: c.Root,
			Files: map[string]string{"usr/local/bin/tandem": c.earlier}, Links: map[string]string{"usr/local/bin/kube-proxy": "tandem"}, Entrypoint: []string{"/usr/local/bin/tandem"},
		})
	}
	if err := writeImages(filepath.Join(c.State, "images", "all.tar"), all); err != nil {
		return err
	}
	if c.proxy.Name != tandem && !c.both {
		return nil
	}
	out := filepath.Join(c.State, "dist")
	if err := c.run(ctx, []string{"TANDEM_SIGNING_KEY="}, filepath.Join(c.repo, "ci/dist/run"), "-targets", "linux/amd64", "-only", "programs,licenses,images", "-out", out); err != nil {
		return err
	}
	for _, name := range []string{"tandem.tar", "tandem-iptables.tar"} {
		if err := os.Rename(filepath.Join(out, "images", name), filepath.Join(c.State, "images", name)); err != nil {
			return err
		}
	}
	return nil
}

// allImages are those that upstream's tests name (test/utils/image/manifest.go), and the cluster's own.
func (c *cluster) allImages(pause string) []image {
	upstream := func(name string) string { return c.tool("upstream", name) }
	e2e := func(name string) string { return "registry.k8s.io/e2e-test-images/" + name }
	return []image{
		{Names: []string{pauseImage}, Files: map[string]string{"pause": pause}, Entrypoint: []string{"/pause"}},
		{Names: []string{loadImage}, Files: map[string]string{"cluster": filepath.Join(c.bin(), "cluster")}, Entrypoint: []string{"/cluster", "load"}},
		{Names: []string{"registry.k8s.io/coredns/coredns:lab"}, Files: map[string]string{"coredns": c.tool("coredns", "coredns")}, Entrypoint: []string{"/coredns"}},
		{
			Names: []string{"registry.k8s.io/kube-proxy:lab"}, Base: c.Root,
			Files: map[string]string{"usr/local/bin/kube-proxy": upstream("kube-proxy")}, Entrypoint: []string{"/usr/local/bin/kube-proxy"},
		},
		{
			Names: []string{e2e("agnhost:2.66.1"), e2e("agnhost:2.55")}, Base: c.Root,
			Files: map[string]string{"agnhost": upstream("agnhost"), "localhost.crt": upstream("localhost.crt"), "localhost.key": upstream("localhost.key"), "coredns": c.tool("coredns", "coredns")}, Links: map[string]string{"agnhost-2": "agnhost"}, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
		},
		{Names: []string{e2e("regression-issue-74839:1.5")}, Base: c.Root, Files: map[string]string{"regression-issue-74839": upstream("regression-issue-74839")}, Entrypoint: []string{"/regression-issue-74839"}},
		{
			Names: []string{e2e("busybox:1.37.0-2"), e2e("glibc-dns-testing:2.1.1"), "registry.k8s.io/build-image/distroless-iptables:v0.9.9"},
			Base:  c.Root, Cmd: []string{"sh"},
		},
		// Endpoints' tests take any server on port 80 for it.
		{Names: []string{e2e("nginx:1.27.0-2")}, Base: c.Root, Files: map[string]string{"agnhost": upstream("agnhost")}, Cmd: []string{"/agnhost", "netexec", "--http-port=80"}},
	}
}

// machines starts the machines and connects them.
func (c *cluster) machines(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	listener, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer listener.Close()
	conf := configuration{plan: c.plan, dir: c.config()}
	if err := conf.write(c.kubeconfig(), l.Addr().(*net.TCPAddr).Port); err != nil {
		return err
	}
	self := filepath.Join(c.bin(), "cluster")
	pids := map[string]int{}
	for _, n := range c.plan.machines() {
		m, handed := c.control(c.plan), listener
		if n.Name != controlName {
			m, handed = c.worker(n), nil
			if err := c.cni(m, n); err != nil {
				return err
			}
		}
		groups, err := makeGroups(groupName(c.State), n.Name)
		if err != nil {
			return err
		}
		if pids[n.Name], err = m.start(self, groups, handed); err != nil {
			return err
		}
	}
	for _, pid := range pids {
		if err := until(ctx, startTime, func() error { return booted(pid) }); err != nil {
			return err
		}
	}
	var nodes []int
	for _, n := range c.plan.Workers {
		nodes = append(nodes, pids[n.Name])
	}
	if err := links(ctx, pids[controlName], c.plan.controlLinks(nodes)); err != nil {
		return err
	}
	for _, n := range c.plan.Workers {
		if err := links(ctx, pids[n.Name], c.plan.nodeLinks(n)); err != nil {
			return err
		}
		if err := inNetwork(ctx, pids[n.Name], c.plan.masquerade(), "nft", "-f", "-"); err != nil {
			return err
		}
	}
	return nil
}

// booted returns nil when a machine is in its second step: while a process starts over, its namespaces
// cannot be opened.
func booted(pid int) error {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	if !bytes.Contains(line, []byte("\x00boot\x00")) {
		return fmt.Errorf("process %d has not booted its machine", pid)
	}
	return nil
}

// cni writes the file of the CNI plug-ins of a node.
func (c *cluster) cni(m machine, n node) error {
	text, err := render("cni.json", n)
	if err != nil {
		return err
	}
	folder := filepath.Join(m.Work, "cni")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "10-cluster.conflist"), text, 0o644)
}

func copySelf(to string) error {
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// links runs commands of ip(8) in a machine's network.
func links(ctx context.Context, pid int, lines []string) error {
	return inNetwork(ctx, pid, strings.Join(lines, "\n"), "ip", "-batch", "-")
}

// inNetwork runs a command of this machine in a machine's network, with a script for its input.
func inNetwork(ctx context.Context, pid int, script string, command ...string) error {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", fmt.Sprint(pid), "--net"}, command...)...)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command[0], err, out)
	}
	return nil
}

// in returns a command that runs in a machine.
func (c *cluster) in(ctx context.Context, name string, args ...string) (*exec.Cmd, error) {
	pid, err := os.ReadFile(filepath.Join(c.work(name), "pid"))
	if err != nil {
		return nil, fmt.Errorf("no machine %s: %w", name, err)
	}
	return exec.CommandContext(ctx, "nsenter", append([]string{"--target", string(pid), "--all", "--wd=/", "env", "-i", "PATH=" + machinePath, "HOME=/root", "TERM=xterm", "KUBECONFIG=" + configDir + "/admin.conf"}, args...)...), nil
}

// inMachine runs a command line in a machine.
func (c *cluster) inMachine(ctx context.Context, name, line string) error {
	cmd, err := c.in(ctx, name, "sh", "-c", line)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s on %s: %w: %s", line, name, err, tail(string(out), 1000))
	}
	return nil
}

const machinePath = partsDir + "/upstream:" + partsDir + "/containerd:/usr/sbin:/usr/bin:/sbin:/bin"

// run runs a command of this machine whose output belongs to the progress.
func (c *cluster) run(ctx context.Context, env []string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(name), err, tail(said.String(), 2000))
	}
	return nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// kubectl runs kubectl as the administrator and returns what it prints.
func (c *cluster) kubectl(ctx context.Context, input []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.tool("upstream", "kubectl"), append([]string{"--kubeconfig=" + c.layout.kubeconfig(), "--cache-dir=" + filepath.Join(c.State, "kubectl")}, args...)...)
	cmd.Stdin = bytes.NewReader(input)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, tail(said.String(), 2000))
	}
	return string(out), nil
}

// until tries something until it succeeds or the time is over.
func until(ctx context.Context, limit time.Duration, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// startTime is how long parts may take to come up on a busy machine.
const startTime = 4 * time.Minute

func (c *cluster) apiServer(ctx context.Context) error {
	return until(ctx, startTime, func() error {
		_, err := c.kubectl(ctx, nil, "get", "--raw", "/readyz", "--request-timeout=5s")
		return err
	})
}

// importImages imports the images on all nodes at once.
func (c *cluster) importImages(ctx context.Context) error {
	archives, err := filepath.Glob(filepath.Join(c.State, "images", "*.tar"))
	if err != nil {
		return err
	}
	return c.onNodes(func(n node) error {
		for _, a := range archives {
			cmd, err := c.in(ctx, n.Name, "ctr", "--namespace=k8s.io", "--connect-timeout=120s", "images", "import", "--local", "--platform=linux/amd64", "/var/lib/images/"+filepath.Base(a))
			if err != nil {
				return err
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s on %s: %w: %s", filepath.Base(a), n.Name, err, tail(string(out), 1000))
			}
		}
		return nil
	})
}

// onNodes does something for all nodes at once.
func (c *cluster) onNodes(do func(node) error) error {
	errs := make([]error, len(c.plan.Workers))
	var group sync.WaitGroup
	for i, n := range c.plan.Workers {
		group.Go(func() { errs[i] = do(n) })
	}
	group.Wait()
	return errors.Join(errs...)
}

// nodes waits for the Node objects and gives them the networks of their pods.
func (c *cluster) nodes(ctx context.Context) error {
	for _, n := range c.plan.Workers {
		pods := fmt.Appendf(nil, `{"spec":{"podCIDR":%q,"podCIDRs":["%s"]}}`, n.Pods[0], strings.ReplaceAll(join(n.Pods), ",", `","`))
		if err := until(ctx, startTime, func() error {
			_, err := c.kubectl(ctx, nil, "patch", "node", n.Name, "--type=merge", "--patch="+string(pods))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// apply applies a manifest of files.
func (c *cluster) apply(ctx context.Context, name string, values any) error {
	text, err := render(name, values)
	if err != nil {
		return err
	}
	_, err = c.kubectl(ctx, text, "apply", "--server-side", "--filename=-")
	return err
}

// install installs the Service proxy as users do: Tandem by its chart on kubeadm's ConfigMap,
// kube-proxy as kubeadm does.
func (c *cluster) install(ctx context.Context) error {
	if c.proxy.Name == none {
		return nil
	}
	if err := os.WriteFile(c.installed(), []byte(c.proxy.run()), 0o644); err != nil {
		return err
	}
	if err := c.configMap(ctx, c.proxy.Mode, ""); err != nil {
		return err
	}
	if c.proxy.Name == kubeProxy {
		return c.apply(ctx, "kube-proxy.yaml", nil)
	}
	return c.chart(ctx, "apply", chartSettings(c.proxy.Mode))
}

// configMap writes kubeadm's ConfigMap for a mode, with an address for metrics if it is not to be the default.
func (c *cluster) configMap(ctx context.Context, mode, metrics string) error {
	return c.apply(ctx, "proxy-config.yaml", map[string]string{"Mode": mode, "Metrics": metrics, "ClusterCIDR": c.plan.ranges(podNets), "NodePorts": c.plan.ranges(machineNets) + ",127.0.0.0/8", "Server": c.plan.Control.Addr[0].String()})
}

// chart renders the chart, with the image of this tree unless the settings name another, as `helm template` does, and
// applies or deletes its objects.
func (c *cluster) chart(ctx context.Context, verb string, settings []string) error {
	tag, err := imageTag(filepath.Join(c.State, "dist", "images", "tandem", "index.json"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "-C", filepath.Join(c.repo, "installers/kubernetes/render"), ".", "-print", "image.tag=" + tag}, settings...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	manifests, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("chart: %w: %s", err, tail(said.String(), 2000))
	}
	more := map[string]string{"apply": "--server-side", "delete": "--ignore-not-found"}
	_, err = c.kubectl(ctx, manifests, verb, "--filename=-", more[verb])
	return err
}

// imageTag reads the tag of an image of `make dist`.
func imageTag(index string) (string, error) {
	data, err := os.ReadFile(index)
	if err != nil {
		return "", err
	}
	var i struct{ Manifests []descriptor }
	if err := json.Unmarshal(data, &i); err != nil || len(i.Manifests) == 0 {
		return "", fmt.Errorf("%s has no image: %w", index, err)
	}
	return i.Manifests[0].Annotations["org.opencontainers.image.ref.name"], nil
}

// ready waits until all nodes and all pods of kube-system are.
func (c *cluster) ready(ctx context.Context) error {
	if _, err := c.kubectl(ctx, nil, "wait", "nodes", "--all", "--for=condition=Ready", "--timeout="+startTime.String()); err != nil {
		return err
	}
	if c.proxy.Name == none {
		return nil // CoreDNS needs Services
	}
	return errors.Join(c.rolledOut(ctx, "kube-system", "daemonset/"+c.proxy.Name), c.rolledOut(ctx, "kube-system", "deployment/coredns"))
}

// rolledOut waits for the pods of a namespace's DaemonSet or Deployment.
func (c *cluster) rolledOut(ctx context.Context, namespace, object string) error {
	_, err := c.kubectl(ctx, nil, "--namespace="+namespace, "rollout", "status", object, "--timeout="+startTime.String())
	return err
}
