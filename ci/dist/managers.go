// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

const home = "https://github.com/tandem-proxy/tandem"

// published is what package managers are told about a release: where its files are to be
// downloaded, and their checksums.
type published struct {
	Version, Commit, Date string
	Home, Downloads       string
	Windows               []windowsFiles
}

type windowsFiles struct {
	Winget, Scoop string // the managers' names of the processor
	MSI, Zip      summed
}

type summed struct{ Name, Sum string }

// managers writes the manifests of package managers that keep theirs in repositories of
// their own: winget, Scoop and Homebrew. A pull request there publishes them.
func (r release) managers(context.Context) error {
	l := published{Version: r.version, Commit: r.commit, Date: r.when.Format("2006-01-02"), Home: home, Downloads: home + "/releases/download/v" + r.version}
	for _, t := range r.targets {
		if t.os != "windows" {
			continue
		}
		w := windowsFiles{Winget: "x64", Scoop: "64bit"}
		if t.arch != "amd64" {
			w.Winget, w.Scoop = t.arch, t.arch
		}
		for ending, to := range map[string]*summed{".msi": &w.MSI, ".zip": &w.Zip} {
			to.Name = fmt.Sprintf("tandem-%s-windows-%s%s", r.version, t.arch, ending)
			sum, err := digest(filepath.Join(r.out, "windows", to.Name))
			if err != nil {
				return err
			}
			to.Sum = fmt.Sprintf("%X", sum)
		}
		l.Windows = append(l.Windows, w)
	}
	files := map[string]string{"homebrew.rb": "homebrew/tandem.rb"}
	if len(l.Windows) > 0 {
		files["scoop.json"] = "scoop/tandem.json"
		for _, kind := range []string{"", ".installer", ".locale.en-US"} {
			files["winget"+kind+".yaml"] = "winget/manifests/t/TandemProxy/Tandem/" + r.version + "/TandemProxy.Tandem" + kind + ".yaml"
		}
	}
	for from, to := range files {
		text, err := template.ParseFiles(filepath.Join(r.root, "installers", "managers", from))
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := text.Option("missingkey=error").Execute(&b, l); err != nil {
			return err
		}
		path := filepath.Join(r.out, "managers", filepath.FromSlash(to))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
