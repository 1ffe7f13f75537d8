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
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
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
	var err error
	if set.Runs, err = t.proxies(c, set.Runs); err != nil {
		return err
	}
	if set.Shape != (shape{}) {
		if c.plan, err = newPlan(set.Shape); err != nil {
			return err
		}
	}
	set.Limit = cmp.Or(t.Limit, set.Limit)
	if t.Focus != "" {
		set.Focus = t.Focus
	}
	if c.kubernetes != "" || len(set.Versions) == 0 {
		set.Versions = []string{c.kubernetes}
	}
	var all []figures
	for _, version := range set.Versions {
		for _, p := range set.Runs {
			c.kubernetes, c.proxy = version, p
			f, err := t.one(ctx, c, set)
			last := len(all)+1 == len(set.Versions)*len(set.Runs)
			if !t.Here && (!t.Keep || !last) {
				err = errors.Join(err, down(c.State))
			}
			if err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
			all = append(all, f)
			fmt.Printf("e2e: %s, Kubernetes %s: %d pass, %d fail, %d skipped, %s s\n", p, f.Facts[factVersion], f.count(passed), f.count(failed), f.count(skipped), f.Facts[factSeconds])
			if t.Focus == "" && t.Set != "sample" {
				if err := t.save(c.repo, f); err != nil {
					return err
				}
			}
		}
	}
	fmt.Print(failures(all))
	fmt.Println(closing(all))
	if lines := worse(all); len(lines) > 0 {
		return fmt.Errorf("no run of kube-proxy among these fails them, Tandem does:\n%s", strings.Join(lines, "\n"))
	}
	return nil
}

// proxies are those that the tests are run for: those that are named, else the one of the cluster that runs or
// those of the set.
func (t suite) proxies(c *cluster, usual []proxy) ([]proxy, error) {
	switch {
	case t.Runs != "":
		return parseRuns(t.Runs)
	case !t.Here:
		return usual, nil
	}
	data, err := os.ReadFile(c.installed())
	if err != nil {
		return nil, fmt.Errorf("no cluster with a proxy runs: %w", err)
	}
	return parseRuns(string(data))
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
	f = figures{Set: t.Set, Kubernetes: c.kubernetes, Proxy: c.proxy, Facts: map[string]string{factDate: time.Now().UTC().Format(time.DateOnly)}}
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
	m, err := c.newMeter()
	if err != nil {
		return f, err
	}
	var report []byte
	var failure error
	begun = time.Now()
	used := m.during(func() { report, failure = t.ginkgo(ctx, c, set) })
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
	nodes := float64(len(c.plan.Workers))
	f.Facts[factCPU] = fmt.Sprintf("%.1f", used.Seconds()/nodes)
	f.Facts[factRSS] = fmt.Sprintf("%.0f", float64(m.rss)/nodes/(1<<20))
	log, err := os.Open(c.auditLog())
	if err != nil {
		return f, err
	}
	defer log.Close()
	if _, err := log.Seek(m.audited, io.SeekStart); err != nil {
		return f, err
	}
	requests, warnings, err := audit(log)
	f.Facts[factRequests], f.Facts[factWarnings] = strconv.Itoa(requests), strconv.Itoa(len(warnings))
	for _, w := range warnings {
		fmt.Fprintln(c.out, "cluster: Warning Event:", w)
	}
	f.Facts[factLogged] = strconv.Itoa(m.warnings())
	for _, text := range slices.Sorted(maps.Keys(m.said)) {
		fmt.Fprintf(c.out, "cluster: logged %d times: %s\n", m.said[text], text)
	}
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

// meter measures the proxies of all nodes while tests run, those that are restarted, too.
type meter struct {
	proxy   string
	group   string                   // a control group that all machines are in
	logs    string                   // a pattern of the files of the proxies' logs
	used    map[string]time.Duration // CPU of each process, by its ID and when it was started
	rss     int64                    // of those that run
	audited int64                    // bytes of the audit log that were there before
	read    map[string]int64         // bytes of each log file that were read
	said    map[string]int           // warnings and errors in the logs, how often by their text
}

// meterPeriod is how often processes are looked at: what one uses in its last moments is not counted.
const meterPeriod = 5 * time.Second

func (c *cluster) newMeter() (*meter, error) {
	groups, err := ourGroups(groupName(c.State))
	if err != nil || len(groups) == 0 {
		return nil, errors.Join(err, errors.New("no cluster runs"))
	}
	m := &meter{
		proxy: c.proxy.Name, group: groups[0], logs: filepath.Join(c.work("*"), "data/log-pods", "kube-system_"+c.proxy.Name+"-*", "*", "*.log"),
		used: map[string]time.Duration{}, read: map[string]int64{}, said: map[string]int{},
	}
	info, err := os.Stat(c.auditLog())
	if err == nil {
		m.audited = info.Size()
	}
	return m, err
}

// during measures while something runs, and returns what was used meanwhile.
func (m *meter) during(run func()) time.Duration {
	m.look()
	before := m.sum()
	clear(m.said) // of a start
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run()
	}()
	tick := time.NewTicker(meterPeriod)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.look()
		case <-ended:
			m.look()
			return m.sum() - before
		}
	}
}

// look reads the processes of the proxy. Time of children that ended, such as iptables-restore, is in
// that of their parent.
func (m *meter) look() {
	m.rss = 0
	for _, pid := range processes(m.group) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // it has ended
		}
		if p, ok := parseStat(string(stat)); ok && p.name == m.proxy {
			m.used[fmt.Sprint(pid, " ", p.started)] = p.used
			m.rss += p.rss
		}
	}
	files, _ := filepath.Glob(m.logs)
	for _, f := range files {
		m.readLog(f)
	}
}

// readLog counts warnings and errors in what is new in a log file: the lines of a container (CRI) with those of klog.
func (m *meter) readLog(path string) {
	f, err := os.Open(path)
	if err != nil {
		return // its pod is gone
	}
	defer f.Close()
	if _, err := f.Seek(m.read[path], io.SeekStart); err != nil {
		return
	}
	more, _ := io.ReadAll(f)
	more = more[:bytes.LastIndexByte(more, '\n')+1]
	m.read[path] += int64(len(more))
	for line := range strings.Lines(string(more)) {
		if found := warningLine.FindStringSubmatch(line); found != nil {
			m.said[found[1]]++
		}
	}
}

// warningLine is a warning or an error of klog in a line of a container: its quoted message, or its first words without one.
var warningLine = regexp.MustCompile(`^\S+ \S+ [FP] [WE]\d{4} [^\]]*\] ("[^"]*"|[^0-9"\n]{1,60})`)

// warnings is how many there were.
func (m *meter) warnings() (n int) {
	for _, times := range m.said {
		n += times
	}
	return n
}

func (m *meter) sum() (all time.Duration) {
	for _, used := range m.used {
		all += used
	}
	return all
}

// process is what is known of one from proc_pid_stat(5).
type process struct {
	name    string
	started string // in ticks since the machine was
	used    time.Duration
	rss     int64
}

func parseStat(text string) (p process, ok bool) {
	_, rest, _ := strings.Cut(text, "(")
	end := strings.LastIndex(rest, ")")
	if end < 0 {
		return p, false
	}
	fields := strings.Fields(rest[end+1:])
	if len(fields) < 22 {
		return p, false
	}
	const hertz = 100
	for _, i := range []int{11, 12, 13, 14} {
		ticks, _ := strconv.ParseInt(fields[i], 10, 64)
		p.used += time.Duration(ticks) * time.Second / hertz
	}
	pages, _ := strconv.ParseInt(fields[21], 10, 64)
	p.name, p.started, p.rss = rest[:end], fields[19], pages*int64(os.Getpagesize())
	return p, true
}

func (c *cluster) auditLog() string { return filepath.Join(c.work(controlName), "log", "audit.log") }

// audit counts what the proxies asked of the API server, in an audit log, which has no others, and returns what
// the Events of type Warning say that they wrote.
func audit(log io.Reader) (requests int, warnings []string, err error) {
	seen := map[string]bool{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r struct {
			AuditID, Verb string
			RequestObject struct {
				Kind, Type, Reason, Note string
				Regarding                struct{ Kind, Namespace, Name string }
			}
		}
		// One request may have two lines: a watch begins and ends.
		if json.Unmarshal(lines.Bytes(), &r) != nil || seen[r.AuditID] {
			continue
		}
		seen[r.AuditID] = true
		if e := r.RequestObject; r.Verb == "create" && e.Kind == "Event" && e.Type == "Warning" {
			warnings = append(warnings, fmt.Sprintf("%s: %s %s/%s: %s", e.Reason, e.Regarding.Kind, e.Regarding.Namespace, e.Regarding.Name, e.Note))
		}
	}
	return len(seen), warnings, lines.Err()
}
