// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

const provenanceFile = "provenance.intoto.json"

// statement is an in-toto statement whose predicate is SLSA provenance, both of version 1.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition struct {
			BuildType            string            `json:"buildType"`
			ExternalParameters   map[string]string `json:"externalParameters"`
			ResolvedDependencies []resource        `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		RunDetails struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

// provenance writes of which commit, by what and with which parameters each file was built.
// Who built it, and when, is not in it, as two builds are the same: the signature of the
// checksums, which cover this file, and the attestations of the workflow have that.
func (r release) provenance(context.Context) error {
	var s statement
	s.Type, s.PredicateType = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
	err := r.files(func(name, sum string) {
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": sum}})
	})
	if err != nil {
		return err
	}
	build := &s.Predicate.BuildDefinition
	build.BuildType = home + "/tree/main/ci/dist"
	build.ExternalParameters = map[string]string{"version": r.version, "sourceDateEpoch": fmt.Sprint(r.when.Unix()), "go": toolchain}
	build.ResolvedDependencies = []resource{}
	if r.commit != "" { // a source archive has none
		build.ResolvedDependencies = append(build.ResolvedDependencies, resource{URI: "git+" + home, Digest: map[string]string{"gitCommit": r.commit}})
	}
	s.Predicate.RunDetails.Builder.ID = build.BuildType
	text, err := json.MarshalIndent(&s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.out, provenanceFile), append(text, '\n'), 0o644)
}
