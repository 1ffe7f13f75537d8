// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// What others wrote forges no line of the log and drives no terminal, in either
// format.
func TestLogIsPrintable(t *testing.T) {
	for name, handler := range map[string]func(*bytes.Buffer) slog.Handler{
		"text": func(b *bytes.Buffer) slog.Handler { return slog.NewTextHandler(b, nil) },
		"json": func(b *bytes.Buffer) slog.Handler { return slog.NewJSONHandler(jsonLines{b}, nil) },
	} {
		var b bytes.Buffer
		slog.New(handler(&b)).Warn("m\u202em", "err", "a\nb\x1b[31m\u009b\u2066\x7f")
		if line := b.String(); strings.Count(line, "\n") != 1 || strings.ContainsAny(line, "\x1b\u009b\u202e\u2066\x7f") {
			t.Errorf("%s: %q", name, line)
		}
	}
}
