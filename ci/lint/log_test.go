// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// Every log message of the product is a constant that begins in lower case, unless
// with an acronym, and every key is a constant, "err" for errors.
func TestLogCalls(t *testing.T) {
	calls := 0
	for _, top := range []string{"cmd", "core", "installers", "linux", "platform", "windows"} {
		err := filepath.WalkDir(filepath.Join("../..", top), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, _ := filepath.Rel("../..", path)
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				message, ok := logCall(call)
				if !ok {
					return true
				}
				calls++
				for _, fault := range logFaults(call, message) {
					t.Errorf("%s:%d: %s", name, files.Position(call.Pos()).Line, fault)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if calls < 50 {
		t.Errorf("only %d log calls were found", calls)
	}
}

// logCall returns the index of the message among the arguments of a call of slog's
// methods or functions. Loggers are known by their name: log, Log, Logger, slog.
func logCall(call *ast.CallExpr) (message int, ok bool) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return 0, false
	}
	receiver := ""
	switch x := method.X.(type) {
	case *ast.Ident:
		receiver = x.Name
	case *ast.SelectorExpr:
		receiver = x.Sel.Name
	}
	if !slices.Contains([]string{"log", "Log", "Logger", "logger", "slog"}, receiver) {
		return 0, false
	}
	message, ok = map[string]int{
		"Debug": 0, "Info": 0, "Warn": 0, "Error": 0,
		"DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1,
		"Log": 2, "LogAttrs": 2,
	}[method.Sel.Name]
	return message, ok && len(call.Args) > message
}

func logFaults(call *ast.CallExpr, message int) (faults []string) {
	text, ok := constant(call.Args[message])
	switch {
	case !ok:
		faults = append(faults, "the message is not a constant")
	case text == "":
		faults = append(faults, "the message is empty")
	case capitalized(text):
		faults = append(faults, fmt.Sprintf("%q begins in upper case", text))
	}
	for i := message + 1; i < len(call.Args); i += 2 {
		if _, attr := call.Args[i].(*ast.CallExpr); attr { // slog.Int("n", 1)
			i--
			continue
		}
		key, ok := constant(call.Args[i])
		switch {
		case !ok || call.Ellipsis.IsValid() && i == len(call.Args)-1:
			faults = append(faults, "a key is not a constant")
		case key == "error":
			faults = append(faults, `the key "error" is "err" everywhere`)
		case key == "" || unicode.IsUpper(rune(key[0])) || strings.ContainsAny(key, " _-"):
			faults = append(faults, fmt.Sprintf("key %q: camelCase, as in kube-proxy", key))
		}
	}
	return faults
}

func constant(e ast.Expr) (string, bool) {
	literal, ok := e.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}

// capitalized reports whether a text begins with a capital that is not that of an
// acronym: HNS, IPv6.
func capitalized(text string) bool {
	r := []rune(text)
	return unicode.IsUpper(r[0]) && (len(r) == 1 || !unicode.IsUpper(r[1]))
}

// The check finds what it is for.
func TestLogFaults(t *testing.T) {
	for source, want := range map[string]int{
		`log.Warn("sync failed", "err", err)`:        0,
		`slog.Info("HNS is slow")`:                   0,
		`s.options.Log.Info("IPv6 disabled", a)`:     1,
		`p.log.Warn("Sync failed", "error", err)`:    2,
		`p.log.Info(text)`:                           1,
		`p.log.Info("a"+b, key, 1)`:                  2,
		`log.Log(ctx, 0, "Upper")`:                   1,
		`log.Info("set", all...)`:                    1,
		`log.LogAttrs(ctx, 0, "a", slog.Int("n",1))`: 0,
	} {
		e, err := parser.ParseExpr(source)
		if err != nil {
			t.Fatal(err)
		}
		message, ok := logCall(e.(*ast.CallExpr))
		if faults := logFaults(e.(*ast.CallExpr), message); !ok || len(faults) != want {
			t.Errorf("%s: %t, %q, want %d", source, ok, faults, want)
		}
	}
}
