// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/tandem-proxy/tandem/core/config"
)

// The format text is klog's: collectors parse its header, its levels and its pairs.
func TestLogTextIsKlogs(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(klogLines(&b, slog.Level(-2))).With("mode", "nftables")
	log.Info("service programmed", "service", "ns/web", "took", time.Second, "n", 3, "err", errors.New("no \"x\""))
	log.Log(t.Context(), slog.Level(-2), "detail")
	log.Log(t.Context(), slog.Level(-3), "silent")
	log.Warn("careful")
	log.Error("failed")
	const header = `\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ log_test\.go:\d+\] `
	want := regexp.MustCompile(`^I` + header + `"service programmed" mode="nftables" service="ns/web" took="1s" n=3 err="no \\"x\\""
I` + header + `"detail" mode="nftables"
W` + header + `"careful" mode="nftables"
E` + header + `"failed" mode="nftables"
$`)
	if !want.Match(b.Bytes()) {
		t.Errorf("%s", &b)
	}
}

// Untrusted text forges no log line and controls no terminal, in either
// format.
func TestLogIsPrintable(t *testing.T) {
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return klogLines(b, slog.LevelInfo) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(jsonLines{b}, nil) },
	} {
		var b bytes.Buffer
		slog.New(handler(&b)).Warn("m\u202em", "err", "a\nb\x1b[31m\u009b\u2066\x7f")
		if line := b.String(); strings.Count(line, "\n") != 1 || strings.ContainsAny(line, "\x1b\u009b\u202e\u2066\x7f") {
			t.Errorf("%s: %q", name, line)
		}
	}
}

// A log level holds for what libraries log as well; a verbosity above 0 makes it more verbose, and /debug/flags/v
// leaves the rest of the configuration as it is.
func TestLogLevel(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	for _, c := range []struct {
		level     string
		verbosity int
		want      slog.Level
	}{
		{"info", 0, slog.LevelInfo},
		{"info", 4, slog.LevelDebug},
		{"debug", 1, slog.LevelDebug},
		{"warn", 0, slog.LevelWarn},
		{"error", 0, slog.LevelError},
		{"error", 2, -2},
	} {
		var out bytes.Buffer
		conf := config.Default()
		conf.LogLevel, conf.Logging.Verbosity = c.level, c.verbosity
		log := newLog(&out, &conf)
		if got := log.level.Level(); got != c.want {
			t.Errorf("%s, verbosity %d: %s, want %s", c.level, c.verbosity, got, c.want)
		}
		klog.Info("of a library")
		if shown := strings.Contains(out.String(), "of a library"); shown != (c.want <= slog.LevelInfo) {
			t.Errorf("%s, verbosity %d: info of a library is shown: %t", c.level, c.verbosity, shown)
		}
		log.setVerbosity(c.verbosity + 5)
		log.setVerbosity(c.verbosity)
		if got := log.level.Level(); got != c.want {
			t.Errorf("%s, verbosity %d set again: %s, want %s", c.level, c.verbosity, got, c.want)
		}
	}
}
