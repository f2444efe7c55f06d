"""Worker versioning: a deployment's workers report their build, and executions stay on the build they began with.

Temporal gives tasks to the deployment's current version only. The first version ever seen is made current here. An
operator promotes later ones when their workers are up: `temporal worker deployment set-current-version`.
"""

from __future__ import annotations

import asyncio

from temporalio.api.workflowservice.v1 import (
    DescribeWorkerDeploymentRequest,
    DescribeWorkerDeploymentResponse,
    SetWorkerDeploymentCurrentVersionRequest,
)
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import WorkerDeploymentConfig

DEPLOYMENT = "paceline"
REGISTRATION_SECONDS = 30.0
NOT_THERE_YET = {RPCStatusCode.NOT_FOUND, RPCStatusCode.FAILED_PRECONDITION}


def versioned(build_id: str, deployment: str = DEPLOYMENT) -> WorkerDeploymentConfig:
    """The deployment config of workers built as `build_id`."""
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment, build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


async def make_current_if_first(client: Client, version: WorkerDeploymentVersion) -> bool:
    """Makes the version current if its deployment has none yet; True if it is current in the end. Its workers must be
    running: Temporal learns of a version by their polling."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + REGISTRATION_SECONDS
    while True:
        try:
            deployment = await _described(client, version)
            current = deployment.worker_deployment_info.routing_config.current_deployment_version
            if current.build_id:
                return current.build_id == version.build_id
            await client.workflow_service.set_worker_deployment_current_version(
                SetWorkerDeploymentCurrentVersionRequest(
                    namespace=client.namespace,
                    deployment_name=version.deployment_name,
                    build_id=version.build_id,
                    conflict_token=deployment.conflict_token,
                    identity=client.identity,
                )
            )
        except RPCError as error:
            # Not registered yet, or another worker was faster: retry.
            if error.status not in NOT_THERE_YET or loop.time() >= deadline:
                raise
            await asyncio.sleep(0.2)


async def _described(client: Client, version: WorkerDeploymentVersion) -> DescribeWorkerDeploymentResponse:
    return await client.workflow_service.describe_worker_deployment(
        DescribeWorkerDeploymentRequest(namespace=client.namespace, deployment_name=version.deployment_name)
    )
