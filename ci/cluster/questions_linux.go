// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// answer is what a question was answered with, for a row of a table.
type answer struct{ what, says string }

// questions asks the cluster that runs as its users do: each verb of kubectl tandem, by both ways to a node where it
// has both, the pages of all nodes, and connections as they come. It prints a row of a table for each.
func (c *cluster) questions(ctx context.Context) error {
	if err := c.findParts(ctx, "where"); err != nil {
		return err
	}
	if err := c.plugin(); err != nil {
		return err
	}
	if err := c.startLoad(ctx); err != nil {
		return err
	}
	if err := c.apply(ctx, "questions.yaml", loadValues()); err != nil {
		return err
	}
	defer func() { _, _ = c.kubectl(ctx, nil, "delete", "namespace", "load", "--wait=false") }()
	return c.askAll(ctx, "questions", questionsHead, "| `%s` | %.1f s | %s |\n",
		c.askNodes(viaExec), c.askDifferences, c.askAlike("services", "--all-nodes", "load/server"), c.askPod("explain"), c.askPod("trace"),
		c.askAlike("drift", "--all-nodes"), c.askSnapshot,
		c.askPages("kubectl tandem ui", c.tandemCommand(ctx, "ui")),
		c.askPages("tandem ui --cluster", c.program(exec.CommandContext(ctx, c.tandemPath(), "ui", "--cluster"))),
		c.askMonitor, c.openProxy, c.askNodes(viaProxy), c.askPod("explain"))
}

// askAll asks one after the other, prints a row for each, with what was asked, the seconds and the answer, and writes the
// table to figures.
func (c *cluster) askAll(ctx context.Context, name, head, format string, asks ...func(context.Context) (answer, error)) error {
	table := head
	for _, ask := range asks {
		begun := time.Now()
		a, err := ask(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", a.what, err)
		}
		row := fmt.Sprintf(format, a.what, time.Since(begun).Seconds(), a.says)
		table += row
		fmt.Fprint(c.out, row)
	}
	return os.WriteFile(filepath.Join(c.repo, "ci/cluster/figures", name+".md"), []byte(table), 0o644)
}

const questionsHead = "| question | takes | answer |\n|---|---|---|\n"

// plugin puts the tree's program into a folder as a plugin of kubectl.
func (c *cluster) plugin() error {
	if _, err := os.Stat(c.tandemPath()); err != nil {
		return fmt.Errorf("no Tandem in this cluster: %w", err)
	}
	if err := os.MkdirAll(c.plugins(), 0o755); err != nil {
		return err
	}
	if err := os.Remove(c.pluginPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink("../dist/bin/tandem-linux-amd64", c.pluginPath())
}

func (c *cluster) plugins() string { return filepath.Join(c.State, "plugins") }

func (c *cluster) tandemPath() string { return filepath.Join(c.State, "dist/bin/tandem-linux-amd64") }

func (c *cluster) pluginPath() string { return filepath.Join(c.plugins(), "kubectl-tandem") }

// tandemCommand is kubectl tandem with arguments, as a user types it.
func (c *cluster) tandemCommand(ctx context.Context, args ...string) *exec.Cmd {
	return c.program(exec.CommandContext(ctx, c.tool("upstream", "kubectl"), append([]string{"tandem"}, args...)...))
}

// program gives a command the plugin and the administrator's kubeconfig.
func (c *cluster) program(cmd *exec.Cmd) *exec.Cmd {
	cmd.Env = append(os.Environ(), "PATH="+c.plugins()+":"+os.Getenv("PATH"), "KUBECONFIG="+c.layout.kubeconfig())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// tandem runs kubectl tandem and returns what it prints; any exit code but 0 is an error.
func (c *cluster) tandem(ctx context.Context, args ...string) (string, error) {
	var said strings.Builder
	cmd := c.tandemCommand(ctx, args...)
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s%s", err, tail(string(out), 2000), tail(said.String(), 1000))
	}
	return string(out), err
}

// nodeLine is what this program reads of a node in kubectl tandem status -o json.
type nodeLine struct {
	Node, Version, Mode, Error string
	Healthy, Differs           bool
	Services                   int
}

// The ways to a node.
const (
	viaExec  = "exec"
	viaProxy = "proxy"
)

// askNodes asks for one line of each node.
func (c *cluster) askNodes(via string) func(context.Context) (answer, error) {
	return func(ctx context.Context) (answer, error) {
		a := answer{what: "kubectl tandem status --via " + via}
		out, err := c.tandem(ctx, "status", "--via", via, "-o", "json")
		if err != nil {
			return a, err
		}
		a.says, err = wellNodes(out, c.plan.names(), c.proxy.Mode)
		return a, err
	}
}

// openProxy has the chart open the way by the proxy of pods, and the ConfigMap serve metrics on the pods' addresses.
func (c *cluster) openProxy(ctx context.Context) (answer, error) {
	a := answer{what: "helm upgrade --set kubectl.enabled=true", says: "rolled out"}
	if err := c.configMap(ctx, c.proxy.Mode, "0.0.0.0:10249"); err != nil {
		return a, err
	}
	if err := c.chart(ctx, "apply", c.askable()); err != nil {
		return a, err
	}
	return a, c.restart(ctx)
}

// askable are the chart's settings with which kubectl tandem may ask through the API server.
func (c *cluster) askable() []string {
	return append(chartSettings(c.proxy.Mode), "kubectl.enabled=true")
}

// wellNodes reads a status and says in short that all nodes are there, well and alike.
func wellNodes(out string, names []string, mode string) (string, error) {
	var d struct{ Items []nodeLine }
	if err := json.Unmarshal([]byte(out), &d); err != nil {
		return "", err
	}
	var seen []string
	for _, n := range d.Items {
		if !n.Healthy || n.Differs || n.Error != "" || n.Mode != mode || n.Services == 0 {
			return "", fmt.Errorf("node %s is not well, or not in mode %s: %+v", n.Node, mode, n)
		}
		seen = append(seen, n.Node)
	}
	slices.Sort(seen)
	if !slices.Equal(seen, names) {
		return "", fmt.Errorf("nodes %v are shown, not %v", seen, names)
	}
	return fmt.Sprintf("%d nodes healthy and alike, mode %s, %d Services", len(seen), mode, d.Items[0].Services), nil
}

// askDifferences compares the Services of all nodes.
func (c *cluster) askDifferences(ctx context.Context) (answer, error) {
	a := answer{what: "kubectl tandem diff", says: "none"}
	_, err := c.tandem(ctx, "diff")
	return a, err
}

// askAlike asks all nodes, which must answer alike.
func (c *cluster) askAlike(args ...string) func(context.Context) (answer, error) {
	return func(ctx context.Context) (answer, error) {
		a := answer{what: "kubectl tandem " + strings.Join(args, " ")}
		out, err := c.tandem(ctx, args...)
		if err != nil {
			return a, err
		}
		a.says, err = has(out, fmt.Sprintf("%d of %d nodes answer alike", len(c.plan.Workers), len(c.plan.Workers)))
		return a, err
	}
}

// has returns the first line with a text.
func has(out, text string) (string, error) {
	for line := range strings.Lines(out) {
		if strings.Contains(line, text) {
			return strings.TrimSpace(line), nil
		}
	}
	return "", fmt.Errorf("%q is not in the answer:\n%s", text, tail(out, 2000))
}

// askPod asks what becomes of a connection of a pod to a Service: the pod's node is found by its name.
func (c *cluster) askPod(verb string) func(context.Context) (answer, error) {
	return func(ctx context.Context) (answer, error) {
		a := answer{what: fmt.Sprintf("kubectl tandem %s -n load pod/caller load/server:%s", verb, loadPort)}
		for _, n := range c.plan.Workers {
			pod, err := c.kubectl(ctx, nil, "--namespace=load", "get", "pods", "--selector=app=caller", "--field-selector=spec.nodeName="+n.Name, "--output=jsonpath={.items[0].metadata.name}")
			if err != nil {
				return a, err
			}
			out, err := c.tandem(ctx, verb, "-n", "load", "pod/"+pod, "load/server:"+loadPort, "-o", "json")
			if err != nil {
				return a, err
			}
			var d struct{ Node, Outcome, Service string }
			if err := json.Unmarshal([]byte(out), &d); err != nil {
				return a, err
			}
			if d.Node != n.Name || d.Outcome != "forward" {
				return a, fmt.Errorf("pod %s on %s: %+v", pod, n.Name, d)
			}
			a.says = fmt.Sprintf("%s, of %d pods by the tandems of their nodes", d.Outcome, len(c.plan.Workers))
		}
		return a, nil
	}
}

// askSnapshot takes one and asks the file.
func (c *cluster) askSnapshot(ctx context.Context) (answer, error) {
	a := answer{what: "kubectl tandem snapshot --node node-1 > FILE"}
	out, err := c.tandem(ctx, "snapshot", "--node", "node-1")
	if err != nil {
		return a, err
	}
	file := filepath.Join(c.State, "node-1.snapshot")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		return a, err
	}
	said, err := exec.CommandContext(ctx, c.tandemPath(), "explain", "--snapshot", file, "host", "load/server:"+loadPort).CombinedOutput()
	if err != nil {
		return a, fmt.Errorf("%w: %s", err, said)
	}
	a.says = fmt.Sprintf("%d KiB, which answer `explain`", len(out)>>10)
	return a, nil
}

// askPages fetches the page of all nodes, and those of each, from a command that serves them.
func (c *cluster) askPages(what string, cmd *exec.Cmd) func(context.Context) (answer, error) {
	return func(ctx context.Context) (answer, error) {
		lines, err := begin(cmd)
		if err != nil {
			return answer{what: what}, err
		}
		defer func() { _ = cmd.Cancel(); _ = cmd.Wait() }()
		says, err := c.pages(ctx, lines)
		return answer{what, says}, err
	}
}

func (c *cluster) pages(ctx context.Context, lines func(context.Context, time.Duration) (string, error)) (string, error) {
	first, err := lines(ctx, startTime)
	if err != nil {
		return "", err
	}
	at := strings.TrimSuffix(first, "/ui")
	page, err := fetch(ctx, at+"/ui")
	if err != nil {
		return "", err
	}
	bytes, pages := len(page), 1
	for _, n := range c.plan.Workers {
		if !strings.Contains(page, `"/node/`+n.Name+`/ui"`) {
			return "", fmt.Errorf("node %s is not on the page of all nodes", n.Name)
		}
		for path, want := range map[string]string{
			"/ui": "load/server", "/ui/service/load/server": loadServer, "/ui/history": "load/nobody",
			"/ui/explain?from=host&to=" + nobodyAddress + ":" + loadPort: "load/nobody",
		} {
			text, err := fetch(ctx, at+"/node/"+n.Name+path)
			if err != nil {
				return "", err
			}
			if !strings.Contains(text, want) {
				return "", fmt.Errorf("%s of %s does not have %s", path, n.Name, want)
			}
			bytes, pages = bytes+len(text), pages+1
		}
	}
	return fmt.Sprintf("%d pages, %d KiB: %d nodes with Services, a path, changes and an explanation each", pages, bytes>>10, len(c.plan.Workers)), nil
}

// askMonitor waits for a connection of a pod that a Service forwards and one that it rejects, on each node.
func (c *cluster) askMonitor(ctx context.Context) (answer, error) {
	a := answer{what: "kubectl tandem monitor --node NODE -n load"}
	for _, n := range c.plan.Workers {
		if err := c.monitorNode(ctx, n); err != nil {
			return a, fmt.Errorf("%s: %w", n.Name, err)
		}
	}
	a.says = fmt.Sprintf("on %d nodes: a connection to load/server forwarded, one to load/nobody rejected", len(c.plan.Workers))
	return a, nil
}

func (c *cluster) monitorNode(ctx context.Context, n node) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	cmd := c.tandemCommand(ctx, "monitor", "--node", n.Name, "-n", "load")
	lines, err := begin(cmd)
	if err != nil {
		return err
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	if _, err := lines(ctx, startTime); err != nil { // what is shown at all
		return err
	}
	call, err := c.in(ctx, n.Name, "curl", "--silent", "--max-time", "3", "http://"+nobodyAddress+":"+loadPort)
	if err != nil {
		return err
	}
	if err := call.Run(); err == nil {
		return errors.New("a Service without endpoints answered")
	}
	missing := []string{"FORWARD", "REJECT"}
	for len(missing) > 0 {
		line, err := lines(ctx, 20*time.Second)
		if err != nil {
			return fmt.Errorf("no %v: %w", missing, err)
		}
		missing = slices.DeleteFunc(missing, func(verdict string) bool {
			return strings.Contains(line, verdict) && strings.Contains(line, map[string]string{"FORWARD": "load/server", "REJECT": "load/nobody"}[verdict])
		})
	}
	return nil
}

// begin starts a command and returns what waits for its next line.
func begin(cmd *exec.Cmd) (func(context.Context, time.Duration) (string, error), error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case lines <- s.Text():
			default: // no reader
			}
		}
	}()
	return func(ctx context.Context, limit time.Duration) (string, error) {
		select {
		case line, ok := <-lines:
			if !ok {
				return "", io.ErrUnexpectedEOF
			}
			return line, nil
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(limit):
			return "", fmt.Errorf("no line within %s", limit)
		}
	}, nil
}

// fetch fetches a page.
func fetch(ctx context.Context, at string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", at, res.Status, tail(string(text), 500))
	}
	return string(text), err
}
