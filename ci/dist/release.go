// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// release is what is built, and where.
type release struct {
	root    string // of the repository
	out     string
	version string // semantic, without v
	commit  string
	when    time.Time // in all artifacts

	targets []target // nil for all
	only    string   // steps, with commas between them; "" for all
}

// identify finds out what the release is called and when it is from.
func (r *release) identify(ctx context.Context) (err error) {
	if r.root, err = filepath.Abs(r.root); err != nil {
		return err
	}
	if r.out, err = filepath.Abs(r.out); err != nil {
		return err
	}
	if r.targets == nil {
		r.targets = all()
	}
	r.version = semantic(r.version)
	if r.commit == "" {
		r.commit, _ = r.git(ctx, "rev-parse", "HEAD") // a source archive has none
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		if epoch, err = r.git(ctx, "log", "-1", "--format=%ct"); err != nil {
			return fmt.Errorf("no time of the commit, set SOURCE_DATE_EPOCH: %w", err)
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	r.when = time.Unix(seconds, 0).UTC()
	return nil
}

func (r *release) git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.root}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// semantic makes a version that packages can be compared by of what git describe
// says: commits after a tag come after it, and a commit without one before every
// release.
func semantic(described string) string {
	tag := regexp.MustCompile(`^v?(\d+\.\d+\.\d+(?:-[a-z][a-z0-9.]*)?)(?:-(\d+)-(g[0-9a-f]+))?$`)
	clean, dirty := strings.CutSuffix(described, "-dirty")
	m := tag.FindStringSubmatch(clean)
	version, extra := "0.0.0-git", []string{regexp.MustCompile(`[^0-9A-Za-z.]`).ReplaceAllString(clean, ".")}
	if m != nil {
		version, extra = m[1], m[2:4]
	}
	if dirty {
		extra = append(extra, "dirty")
	}
	if extra = slices.DeleteFunc(extra, func(s string) bool { return s == "" }); len(extra) == 0 {
		return version
	}
	return version + "+" + strings.Join(extra, ".")
}

func (r release) epoch() string { return fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.when.Unix()) }
