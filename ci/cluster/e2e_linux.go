// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// suite is a run of upstream's tests, for some proxies.
type suite struct {
	Set, Runs, Focus string
	Procs            int
	Limit            time.Duration // 0: that of the set
	Keep             bool          // the last cluster
	Here             bool          // in the cluster that runs
}

// run runs a set of tests for each proxy in a cluster of its own, and writes the figures.
func (t suite) run(ctx context.Context, c *cluster) error {
	set, ok := sets()[t.Set]
	if !ok {
		return fmt.Errorf("no set %q of tests", t.Set)
	}
	if t.Runs != "" {
		var err error
		if set.Runs, err = parseRuns(t.Runs); err != nil {
			return err
		}
	}
	set.Limit = cmp.Or(t.Limit, set.Limit)
	if t.Focus != "" {
		set.Focus = t.Focus
	}
	var all []figures
	for i, p := range set.Runs {
		c.proxy = p
		f, err := t.one(ctx, c, set)
		if !t.Here && (!t.Keep || i < len(set.Runs)-1) {
			err = errors.Join(err, down(c.State))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		all = append(all, f)
		fmt.Printf("e2e: %s: %d pass, %d fail, %d skipped, %s s\n", p, f.count(passed), f.count(failed), f.count(skipped), f.Facts[factSeconds])
		if t.Focus == "" && t.Set != "sample" {
			if err := t.save(c.repo, f); err != nil {
				return err
			}
		}
	}
	fmt.Print(failures(all))
	fmt.Println(closing(all))
	if lines := worse(all); len(lines) > 0 {
		return fmt.Errorf("kube-proxy does not fail them, Tandem does:\n%s", strings.Join(lines, "\n"))
	}
	return nil
}

func (t suite) save(repo string, f figures) error {
	dir := filepath.Join(repo, "ci/cluster/figures")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := f.write(&b); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, f.fileName()), b.Bytes(), 0o644)
}

// one runs the set for one proxy.
func (t suite) one(ctx context.Context, c *cluster, set testSet) (f figures, err error) {
	f = figures{Set: t.Set, Proxy: c.proxy, Facts: map[string]string{factDate: time.Now().UTC().Format(time.DateOnly)}}
	begun := time.Now()
	if t.Here {
		err = c.findParts(ctx, "where")
	} else {
		err = c.up(ctx)
		f.Facts[factUp] = seconds(time.Since(begun))
	}
	if err != nil {
		return f, err
	}
	if f.Facts[factVersion], err = c.version(ctx); err != nil {
		return f, err
	}
	before, err := c.usage()
	if err != nil {
		return f, err
	}
	begun = time.Now()
	report, failure := t.ginkgo(ctx, c, set)
	f.Facts[factSeconds] = seconds(time.Since(begun))
	if report == nil {
		return f, failure
	}
	if f.Specs, err = parseReport(report); err != nil {
		return f, err
	}
	if len(f.Specs) == 0 {
		return f, errors.Join(errors.New("no spec ran"), failure)
	}
	after, err := c.usage()
	if err != nil {
		return f, err
	}
	nodes := float64(len(c.plan.Workers))
	f.Facts[factCPU] = fmt.Sprintf("%.1f", (after.cpu-before.cpu).Seconds()/nodes)
	f.Facts[factRSS] = fmt.Sprintf("%.0f", float64(after.rss)/nodes/(1<<20))
	f.Facts[factRequests] = strconv.Itoa(after.requests - before.requests)
	f.Facts[factWarnings], err = c.warnings(ctx)
	return f, err
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.0f", d.Seconds()) }

func (c *cluster) version(ctx context.Context) (string, error) {
	text, err := c.kubectl(ctx, nil, "get", "--raw", "/version")
	if err != nil {
		return "", err
	}
	var v struct{ GitVersion string }
	err = json.Unmarshal([]byte(text), &v)
	return v.GitVersion, err
}

// ginkgo runs the tests in the control machine and returns the report, also if tests failed. One line
// is printed for each spec that ends.
func (t suite) ginkgo(ctx context.Context, c *cluster, set testSet) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, set.Limit+5*time.Minute)
	defer cancel()
	args := []string{
		"nice", "-n", "5", "env", "--chdir=/tmp", "ginkgo", fmt.Sprintf("--procs=%d", t.Procs), "--timeout=" + set.Limit.String(), "--no-color", "--silence-skips",
		"--output-dir=" + logDir, "--json-report=report.json", "--focus=" + set.Focus,
	}
	if s := skips(set.Skip); s != "" {
		args = append(args, "--skip="+s)
	}
	args = append(args, partsDir+"/upstream/e2e.test", "--", "--provider=skeleton", "--kubeconfig="+configDir+"/admin.conf", "--num-nodes="+strconv.Itoa(len(c.plan.Workers)),
		"--report-dir=", "--allowed-not-ready-nodes=0", "--dump-logs-on-failure=true", "--delete-namespace=true", "--prepull-images=false")
	log := filepath.Join(c.work(controlName), "log")
	path := filepath.Join(log, "report.json")
	_ = os.Remove(path)
	cmd, err := c.in(ctx, controlName, args...)
	if err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(log, "e2e.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	failure := cmd.Run()
	report, err := os.ReadFile(path)
	if err != nil {
		said, _ := os.ReadFile(out.Name())
		return nil, errors.Join(failure, err, errors.New(tail(string(said), 3000)))
	}
	return report, failure
}

// usage is what the proxies of all nodes have used since they were started.
type usage struct {
	cpu      time.Duration
	rss      int64
	requests int // of the API server
}

// usage adds up the processes of the proxy. Time of children that ended, such as iptables-restore, is
// in that of their parent.
func (c *cluster) usage() (u usage, err error) {
	if u.requests, err = c.requests(); err != nil {
		return u, err
	}
	groups, err := ourGroups(groupName(c.State))
	if err != nil {
		return u, err
	}
	seen := map[int]bool{}
	for _, g := range groups {
		for _, pid := range processes(g) {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			if err != nil {
				continue // it has ended
			}
			if name, used, rss, ok := parseStat(string(stat)); ok && name == c.proxy.Name {
				u.cpu += used
				u.rss += rss
			}
		}
	}
	return u, nil
}

// parseStat reads the name, the time of the process and its ended children, and the resident set of a
// process: proc_pid_stat(5).
func parseStat(text string) (name string, used time.Duration, rss int64, ok bool) {
	_, rest, _ := strings.Cut(text, "(")
	end := strings.LastIndex(rest, ")")
	if end < 0 {
		return "", 0, 0, false
	}
	fields := strings.Fields(rest[end+1:])
	if len(fields) < 22 {
		return "", 0, 0, false
	}
	const hertz = 100
	for _, i := range []int{11, 12, 13, 14} {
		ticks, _ := strconv.ParseInt(fields[i], 10, 64)
		used += time.Duration(ticks) * time.Second / hertz
	}
	pages, _ := strconv.ParseInt(fields[21], 10, 64)
	return rest[:end], used, pages * int64(os.Getpagesize()), true
}

// requests counts what the proxies asked of the API server, from its audit log, which has no others.
func (c *cluster) requests() (int, error) {
	f, err := os.Open(filepath.Join(c.work(controlName), "log", "audit.log"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	seen := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r struct{ AuditID string } // one request may have two lines: a watch begins and ends
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			seen[r.AuditID] = true
		}
	}
	return len(seen), lines.Err()
}

// warnings counts the Events of type Warning that the proxy wrote and that are still there.
func (c *cluster) warnings(ctx context.Context) (string, error) {
	text, err := c.kubectl(ctx, nil, "get", "events.v1.events.k8s.io", "--all-namespaces", "--output=json")
	if err != nil {
		return "", err
	}
	var list struct {
		Items []struct {
			Type, ReportingController string
			DeprecatedSource          struct{ Component string }
		}
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return "", err
	}
	n := 0
	for _, e := range list.Items {
		if e.Type == "Warning" && slices.Contains([]string{tandem, kubeProxy}, strings.TrimSpace(e.ReportingController+e.DeprecatedSource.Component)) {
			n++
		}
	}
	return strconv.Itoa(n), nil
}
