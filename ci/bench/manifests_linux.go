// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// address is where tandem serves its metrics.
const address = "127.0.0.1:10249"

// manifests measures the program itself on a folder of manifests.
func manifests() bench {
	return bench{
		name: "manifests", about: "tandem run on a folder of manifests: first start, and restart on right rules",
		rows: func(options) []row {
			return []row{
				{What: "process start to healthy", of: "healthy", by: median, Unit: seconds},
				{What: "CPU until then", of: "cpu", by: median, Unit: seconds},
				{What: "peak of resident memory until then", of: "peak", by: median, Unit: memory, Goal: goal{AtMost: 70 << 20}},
				{What: "writes", of: "writes", by: most, Goal: goal{Zero: true, In: "restart"}},
				{What: "resident memory 5 s later", of: "resident", by: median, Unit: memory, Goal: goal{AtMost: 60 << 20}},
			}
		},
		run: func(ctx context.Context, o options, f *figures) error {
			w := world{services: cmp.Or(o.world.services, 10000), endpoints: 5}
			if o.short {
				w.services = 500
			}
			f.World = w.String() + " from manifests"
			if err := ip("link set lo up"); err != nil {
				return err
			}
			if err := w.write(o.dir); err != nil {
				return err
			}
			start := func(ctx context.Context, s samples) error { return startOnce(ctx, o, s) }
			all := []contender{{name: "first start", round: start}, {name: "restart", round: start}}
			return errors.Join(inRounds(ctx, 1, all, f), o.cleanup())
		},
	}
}

// cleanup removes what tandem has programmed.
func (o options) cleanup() error {
	if out, err := exec.Command(o.tandem, "cleanup").CombinedOutput(); err != nil {
		return fmt.Errorf("cleanup: %w: %s", err, out)
	}
	return nil
}

// ip runs the command of that name.
func ip(args string) error {
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, out)
	}
	return nil
}

func startOnce(ctx context.Context, o options, s samples) error {
	start := time.Now()
	p, err := launch(o.dir, exec.Command(o.tandem, "run", "--manifests", o.dir, "--node", nodeName, "--cluster-cidr", pods.String(), "--log-level", "warn"))
	if err != nil {
		return err
	}
	defer p.stop()
	err = until(ctx, 3*time.Minute, 20*time.Millisecond, func() (bool, error) { return healthy(ctx), p.ended() })
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, p.said())
	}
	s.add("healthy", time.Since(start).Seconds())
	s.add("cpu", preciseCPU(p.pid()))
	s.add("peak", residentPeak(p.pid()))
	sleep(ctx, 5*time.Second) // let memory that start-up needed go back
	writes, err := metric(ctx, "tandem_dataplane_ops_total")
	s.add("writes", writes)
	s.add("resident", resident(p.pid()))
	return err
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
func metric(ctx context.Context, name string) (sum float64, err error) {
	_, b, err := get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || !strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "{") {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " "):]), 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", name, err)
		}
		sum, found = sum+v, true
	}
	if !found {
		return 0, fmt.Errorf("no metric %s", name)
	}
	return sum, nil
}
