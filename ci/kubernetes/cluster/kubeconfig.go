// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig writes a kubeconfig with everything in it.
func writeKubeconfig(path, server string, ca []byte, user api.AuthInfo) error {
	c := api.NewConfig()
	c.Clusters["lab"] = &api.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos["user"] = &user
	c.Contexts["lab"] = &api.Context{Cluster: "lab", AuthInfo: "user"}
	c.CurrentContext = "lab"
	return clientcmd.WriteToFile(*c, path)
}
