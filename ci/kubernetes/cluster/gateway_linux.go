// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/tandem-proxy/tandem/core/watch/gateway"
)

// GatewayResources are those of the Gateway API that proxies read.
func GatewayResources() []string { return []string{"tcproutes", "udproutes", "referencegrants"} }

// Definitions are those of GatewayResources, as the Gateway API publishes them.
type Definitions [][]byte

// FindDefinitions returns them from the module that a folder names, which is fetched
// if it is not in the module cache.
func FindDefinitions(ctx context.Context, folder string) (all Definitions, err error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", "sigs.k8s.io/gateway-api")
	cmd.Dir = folder
	out, err := cmd.Output()
	var module struct{ Dir, Error string }
	if wrong := json.Unmarshal(out, &module); wrong != nil || module.Dir == "" {
		return nil, fmt.Errorf("the definitions of the Gateway API: go mod download in %s: %w", folder, errors.Join(err, wrong, errors.New(module.Error)))
	}
	for _, resource := range GatewayResources() {
		file := filepath.Join(module.Dir, "config", "crd", "standard", gateway.Group+"_"+resource+".yaml")
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		definition, err := yaml.YAMLToJSON(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, definition)
	}
	return all, nil
}

// definitionsPath is where an API server has the definitions of resources.
const definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

// Gateway makes the API server serve routes and grants, and lets system:kube-proxy read them.
func (c *Cluster) Gateway(ctx context.Context, all Definitions) error {
	for _, definition := range all {
		request := c.Client().Discovery().RESTClient().Post().AbsPath(definitionsPath)
		err := request.SetHeader("Content-Type", "application/json").Body(definition).Do(ctx).Error()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("definition of the Gateway API: %w", err)
		}
	}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "gateway-routes"}
	_, err := c.Client().RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{gateway.Group}, Resources: GatewayResources(), Verbs: []string{"list", "watch"}}},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = c.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role.Name}, RoleRef: role,
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "system:kube-proxy"}},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		err = c.served(ctx, gateway.RouteVersions()[0])
	}
	return err
}

// served waits until the API server serves all resources of a version of the Gateway API.
func (c *Cluster) served(ctx context.Context, version schema.GroupVersion) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		missing := GatewayResources()
		list, err := c.Client().Discovery().ServerResourcesForGroupVersion(version.String())
		if err == nil {
			missing = slices.DeleteFunc(missing, func(name string) bool {
				return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
			})
		}
		if len(missing) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API server does not serve %v of %s: %w", missing, version, errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}
