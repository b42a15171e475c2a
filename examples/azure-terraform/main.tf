# A hosted cluster with a node pool and a kubeconfig, made by Terraform with Microsoft's provider azapi, which sends
# the requests of Azure Resource Manager as they are. docs/azure.md says how to run it.
terraform {
  required_providers {
    azapi = { source = "Azure/azapi" }
  }
}

variable "account" {
  type        = string
  description = "azure/client.json in the home of a region that `atoll up --azure` started"
}

variable "replicas" {
  type    = number
  default = 2
}

variable "certificate_signing_request" {
  type        = string
  description = "PEM of the request for the administrator's certificate; its key never leaves this machine"
}

locals {
  account = jsondecode(file(var.account))
  group   = "/subscriptions/${local.account.subscriptionId}/resourceGroups/terraform"
  network = "${local.group}/providers/Microsoft.Network"
  type    = "Microsoft.RedHatOpenShift/hcpOpenShiftClusters"
  version = "2026-09-01-preview"
}

provider "azapi" {
  endpoint = [{
    resource_manager_endpoint       = local.account.resourceManager
    resource_manager_audience       = local.account.resourceManager
    active_directory_authority_host = local.account.authorityHost
  }]
  tenant_id       = "adfs" # with any other, the provider asks login.microsoftonline.com about the authority host
  subscription_id = local.account.subscriptionId
  client_id       = local.account.clientId
  client_secret   = local.account.clientSecret

  skip_provider_registration = true # ARM registers resource providers; the region is one
}

resource "azapi_resource" "cluster" {
  type      = "${local.type}@${local.version}"
  name      = "terraform"
  parent_id = local.group
  location  = local.account.location
  tags      = { team = "shop" }
  body = {
    properties = {
      platform = {
        subnetId               = "${local.network}/virtualNetworks/v/subnets/s"
        networkSecurityGroupId = "${local.network}/networkSecurityGroups/g"
      }
    }
  }
  schema_validation_enabled = false # the provider has no schema of this type
  response_export_values    = ["properties.api.url", "properties.provisioningState"]
}

resource "azapi_resource" "workers" {
  type      = "${local.type}/nodePools@${local.version}"
  name      = "workers"
  parent_id = azapi_resource.cluster.id
  location  = local.account.location
  body = {
    properties = {
      platform = { vmSize = "Standard_D4s_v3" }
      replicas = var.replicas
    }
  }
  schema_validation_enabled = false
  response_export_values    = ["properties.provisioningState"]
}

resource "azapi_resource_action" "kubeconfig" {
  type                   = "${local.type}@${local.version}"
  resource_id            = azapi_resource.cluster.id
  action                 = "requestAdminCredential"
  body                   = { certificateSigningRequest = var.certificate_signing_request }
  response_export_values = ["*"]
}

output "cluster" {
  value = azapi_resource.cluster.output
}

output "workers" {
  value = azapi_resource.workers.output
}

output "kubeconfig" {
  value     = azapi_resource_action.kubeconfig.output
  sensitive = true
}
