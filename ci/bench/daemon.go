package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

const address = "127.0.0.1:10249"

// daemon measures the program itself on a folder of manifests.
func daemon(ctx context.Context, tandem string, w world) error {
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("loopback: %w: %s", err, out)
	}
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := w.write(dir); err != nil {
		return err
	}
	fmt.Printf("tandem run, %d Services x %d endpoints from manifests\n", w.services, w.endpoints)
	for _, what := range []string{"first start", "restart on right rules"} {
		if err := once(ctx, tandem, dir, what); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	out, err := exec.CommandContext(ctx, tandem, "cleanup").CombinedOutput()
	if err != nil {
		return fmt.Errorf("cleanup: %w: %s", err, out)
	}
	return nil
}

func once(ctx context.Context, tandem, dir, what string) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tandem, "run", "--manifests", dir, "--node", nodeName, "--cluster-cidr", "10.128.0.0/9", "--log-level", "warn")
	cmd.Stderr = os.Stderr
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}()
	for {
		if healthy(ctx) {
			break
		}
		if ctx.Err() != nil {
			return fmt.Errorf("not healthy in time: %w", ctx.Err())
		}
		time.Sleep(20 * time.Millisecond)
	}
	plain(what+": process start to healthy", show(time.Since(start)))
	time.Sleep(5 * time.Second) // let memory that start-up needed go back
	ops, err := metric(ctx, "tandem_dataplane_ops_total")
	if err != nil {
		return err
	}
	rss, err := resident(cmd.Process.Pid)
	if err != nil {
		return err
	}
	if what == "first start" {
		plain(what+": writes", ops)
	} else {
		goal(what+": writes", ops, ops == "0", "0")
	}
	goal(what+": resident memory", fmt.Sprintf("%d MB", rss>>20), rss <= 60<<20, "≤ 60 MB")
	return nil
}

func get(ctx context.Context, path string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err = io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func healthy(ctx context.Context) bool {
	code, _, err := get(ctx, "/healthz")
	return err == nil && code == http.StatusOK
}

// metric returns the sum of a metric's series.
func metric(ctx context.Context, name string) (string, error) {
	_, b, err := get(ctx, "/metrics")
	if err != nil {
		return "", err
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "{") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " "):]), 64)
		if err != nil {
			return "", fmt.Errorf("metric %s: %w", name, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return "", fmt.Errorf("no metric %s", name)
	}
	return strconv.FormatFloat(sum, 'f', -1, 64), nil
}

// resident returns the resident memory of a process, in bytes.
func resident(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS of %d", pid)
}
